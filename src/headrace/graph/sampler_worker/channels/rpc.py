"""RPC channel from a sampler to a trainer on another machine.

A sub-batch is sent as one array with the layout of shared memory, and one array for each encoded
column. The trainer keeps several
requests in flight to overlap transfer and use. The run-ahead window bounds the sampler's queue. The
first peer that requests a sub-batch is the trainer; others are rejected. Authentication, TLS and
stream checks are those of stores.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, Queue
from typing import Any

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.sampler_worker.channels.errors import PrefetchError, SamplerLostError
from headrace.graph.sampler_worker.channels.shm import TrainerGoneError
from headrace.graph.sampler_worker.channels.sub_batch import (
    Placed,
    SubBatch,
    from_fields,
    to_fields,
)
from headrace.graph.sampler_worker.config import SUB_BATCH_LIMITS
from headrace.rpc.client import Channel
from headrace.rpc.config import RpcLimits
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import StoreError, StoreLostError
from headrace.rpc.framing import Fields, Message
from headrace.rpc.server import RpcServer
from headrace.rpc.service import RpcService

# A reply is sent within this time even without a sub-batch. Replies are sequential, so the last of
# three requests in flight takes up to six seconds. A sampler that compiles kernels on a busy
# machine takes longer; the controller detects lost processes and machines sooner.
_REPLY_TIMEOUT_S = 2.0
_TIMEOUT_S = 60.0
_SLOWEST_BYTES_PER_S = 1e6
_NUM_PREFETCHED = 2
_ALIGN = 16

_Queued = tuple[dict[str, Any], tuple[np.ndarray, ...]] | SpecError | SamplerLostError


class RpcSender:
    """Queues up to `window` sub-batches for a trainer that requests them.

    `on_gone` is called when the trainer, but not another peer, has closed the connection or exited,
    `on_model` with every model that it sends.
    """

    def __init__(
        self,
        credentials: Credentials,
        window: int,
        host: str = "127.0.0.1",
        port: int = 0,
        on_gone: Callable[[], None] | None = None,
        limits: RpcLimits = SUB_BATCH_LIMITS,
        on_model: Callable[[bytes], None] | None = None,
    ) -> None:
        self._credits = threading.Semaphore(window)
        self._is_gone = False
        self._on_gone = on_gone
        self._next_slot = 0
        self._memory: dict[int, np.ndarray] = {}
        self._queue: Queue[_Queued] = Queue()
        service = _SubBatches(self._queue, self._credits, self._end, on_model)
        self._server = RpcServer(service, credentials, host, port, limits)
        self.port: int = self._server.port

    def reserve(self, num_bytes: int) -> tuple[int, np.ndarray]:
        """Wait for a credit and return a slot and its memory; may raise `TrainerGoneError`."""
        self._credits.acquire()
        if self._is_gone:
            self._credits.release()
            raise TrainerGoneError
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        # Always new: memory of earlier slots may still be in transmission.
        self._memory[slot] = np.empty(num_bytes, np.uint8)
        return slot, self._memory[slot]

    def send(self, slot: int, sub_batch: SubBatch, placed: list[Placed]) -> None:
        """Queue the contents of a slot."""
        arrays = self._memory.pop(slot), *(each.rows for each in sub_batch.encoded)
        self._queue.put(({"part": to_fields(sub_batch, placed)}, arrays))

    def fail(self, problem: str, remedy: str, is_lost: bool = False) -> None:
        """Queue an error after all sub-batches; if `is_lost`, a replacement may succeed."""
        self._queue.put((SamplerLostError if is_lost else SpecError)(problem, remedy))

    def close(self) -> None:
        """Release waits for a credit; queued sub-batches can still be requested."""
        self._is_gone = True
        self._credits.release()

    def shut_down(self) -> None:
        """Stop listening."""
        self.close()
        self._server.close()

    def _end(self) -> None:
        was_gone = self._is_gone
        self.close()
        if self._on_gone is not None and not was_gone:
            self._on_gone()


class RpcReceiver:
    """Receives sub-batches from a sampler on another machine."""

    def __init__(self, channel: Channel, sampler: str = "the sampler") -> None:
        self._channel = channel
        self._sampler = sampler
        self._pending: deque[Future[Message]] = deque()

    def receive(self) -> SubBatch:
        """Wait for the next sub-batch; raise `PrefetchError` if the sampler failed or is lost."""
        while True:
            while len(self._pending) <= _NUM_PREFETCHED:
                self._pending.append(self._channel.ask({"op": "next"}, (), _TIMEOUT_S))
            try:
                reply = self._pending.popleft().result()
            except StoreLostError as error:
                raise SamplerLostError(error.problem, error.remedy) from None
            except StoreError as error:
                raise PrefetchError(error.problem, error.remedy) from None
            if "lost" in reply.fields:
                problem, remedy = reply.fields["lost"]
                raise SamplerLostError(f"{self._sampler}: {problem}", remedy)
            if "part" in reply.fields:
                memory, *encoded = reply.arrays
                return from_fields(reply.fields["part"], _aligned(memory), encoded)

    def send_model(self, model: bytes) -> None:
        """Send the newest model to a sampler with scores; does nothing if the sampler is lost."""
        # Not awaited: a lost sampler is noticed by `receive`.
        with suppress(StoreError):
            timeout_s = _TIMEOUT_S + len(model) / _SLOWEST_BYTES_PER_S
            self._channel.ask({"op": "model"}, (np.frombuffer(model, np.uint8),), timeout_s)

    def close(self) -> None:
        """Close the connection and release threads in `receive`."""
        self._channel.close()


class _SubBatches(RpcService):
    """Handles the trainer's requests."""

    def __init__(
        self,
        queue: Queue[_Queued],
        credits: threading.Semaphore,
        on_end: Callable[[], None],
        on_model: Callable[[bytes], None] | None = None,
    ) -> None:
        super().__init__()
        self._on_model = on_model
        self._queue = queue
        self._credits = credits
        self._on_end = on_end
        self._trainer: int | None = None

    def answer(self, request: Message) -> Message:
        """Handle a request."""
        if request.fields == {"op": "model"} and self._on_model is not None:
            return self._take_model(request, self._on_model)
        if request.arrays or request.fields not in ({"op": "next"}, {"op": "ping"}):
            raise SpecError("a sampler only answers next and ping", "use RpcReceiver")
        if request.fields["op"] == "ping":
            return Message(request.number)
        fields, arrays = self._next(request.stream)
        return Message(request.number, fields, arrays)

    def end_stream(self, stream: int) -> None:
        """Handle the end of the trainer's connection."""
        if self._trainer == stream:
            self._trainer = None
            self._on_end()

    def _claim(self, stream: int) -> None:
        """Make the first connection the trainer's; raise `SpecError` for any other."""
        with self._lock:
            if self._trainer is None:
                self._trainer = stream
        if self._trainer != stream:
            raise SpecError("this sampler already has a trainer", "start one sampler per trainer")

    def _take_model(self, request: Message, on_model: Callable[[bytes], None]) -> Message:
        if [each.dtype for each in request.arrays] != [np.uint8]:
            raise SpecError("a model is sent as bytes", "use RpcReceiver")
        self._claim(request.stream)
        on_model(request.arrays[0].tobytes())
        return Message(request.number)

    def _next(self, stream: int) -> tuple[Fields, tuple[np.ndarray, ...]]:
        self._claim(stream)
        try:
            item = self._queue.get(timeout=_REPLY_TIMEOUT_S)
        except Empty:
            return {"wait": True}, ()
        if isinstance(item, SpecError | SamplerLostError):
            # Also the reply to requests already in flight.
            self._queue.put(item)
            if isinstance(item, SamplerLostError):
                return {"lost": [item.problem, item.remedy]}, ()
            raise item
        self._credits.release()
        return item


def _aligned(memory: np.ndarray) -> np.ndarray:
    """Copy the memory if it is not aligned for arrays."""
    return memory if memory.ctypes.data % _ALIGN == 0 else memory.copy()
