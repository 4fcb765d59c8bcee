"""From a sampler to a trainer on another machine: the trainer asks, as it would ask a store.

A part travels as one array, laid out as in shared memory. The trainer always has requests for the
next parts on their way, so that one travels while another is used. The run-ahead window bounds what
waits at the sampler. Whoever asks first is the trainer; parts are for nobody else. Tokens, TLS and
all checks of streams are those of stores.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, Queue
from typing import Any

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.sampler_worker.channels.errors import FeedError, SamplerLostError
from headrace.graph.sampler_worker.channels.shm import TrainerGoneError
from headrace.graph.sampler_worker.channels.sub_batch import (
    Placed,
    SubBatch,
    from_fields,
    to_fields,
)
from headrace.graph.sampler_worker.config import PART_LIMITS
from headrace.graph.store.service import StoreService
from headrace.graph.store.shard import Shard
from headrace.rpc.channel import Channel
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import StoreError, StoreLostError
from headrace.rpc.framing import Fields, Message
from headrace.rpc.limits import RpcLimits
from headrace.rpc.server import RpcServer

# An answer comes within this time even if there is no part yet: silence means death. Answers come
# one after the other, so that the last of those on their way takes six seconds when all is well.
_ANSWER_S = 2.0
_TIMEOUT_S = 20.0
_ON_THEIR_WAY = 2
_ALIGN = 16

_Waiting = tuple[dict[str, Any], np.ndarray] | SpecError | SamplerLostError


class RpcSender:
    """Offers parts to a trainer that asks for them.

    Args:
        credentials: Who may ask.
        window: How many parts may wait for the trainer.
        host: Address to listen on.
        port: 0 for any that is free.
        on_gone: Called when the trainer has closed or died; strangers come and go unnoticed.
        limits: What anyone may ask for.

    Attributes:
        port: On which it listens.
    """

    def __init__(
        self,
        credentials: Credentials,
        window: int,
        host: str = "127.0.0.1",
        port: int = 0,
        on_gone: Callable[[], None] | None = None,
        limits: RpcLimits = PART_LIMITS,
    ) -> None:
        self._credits = threading.Semaphore(window)
        self._is_gone = False
        self._on_gone = on_gone
        self._next_slot = 0
        self._memory: dict[int, np.ndarray] = {}
        self._waiting: Queue[_Waiting] = Queue()
        operations = _SubBatches(self._waiting, self._credits, limits)
        self._server = _SubBatchServer(operations, credentials, host, port, self._end, limits)
        self.port: int = self._server.port

    def reserve(self, num_bytes: int) -> tuple[int, np.ndarray]:
        """Wait for a credit; then a slot's number, and its memory.

        Raises:
            TrainerGoneError: There will be no credit any more.
        """
        self._credits.acquire()
        if self._is_gone:
            self._credits.release()
            raise TrainerGoneError
        slot, self._next_slot = self._next_slot, self._next_slot + 1
        # Always new: what was sent may still be read by the network.
        self._memory[slot] = np.empty(num_bytes, np.uint8)
        return slot, self._memory[slot]

    def send(self, slot: int, part: SubBatch, placed: list[Placed]) -> None:
        """Offer what was written to a slot."""
        self._waiting.put(({"part": to_fields(part, placed)}, self._memory.pop(slot)))

    def fail(self, problem: str, remedy: str, is_lost: bool = False) -> None:
        """Say what went wrong, after all parts that wait; and if it may go better elsewhere."""
        self._waiting.put((SamplerLostError if is_lost else SpecError)(problem, remedy))

    def close(self) -> None:
        """Let whoever waits for a credit go; what waits can still be taken."""
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
    """Takes parts from a sampler on another machine.

    Args:
        channel: How to reach it; a `FlightChannel` whose address names task and machine.
        sampler: Task and machine, for messages.
    """

    def __init__(self, channel: Channel, sampler: str = "the sampler") -> None:
        self._channel = channel
        self._sampler = sampler
        self._asked: deque[Future[Message]] = deque()

    def receive(self) -> SubBatch:
        """Wait for the next part.

        Raises:
            FeedError: The sampler failed or is gone.
        """
        while True:
            while len(self._asked) <= _ON_THEIR_WAY:
                self._asked.append(self._channel.ask({"op": "next"}, (), _TIMEOUT_S))
            try:
                reply = self._asked.popleft().result()
            except StoreLostError as error:
                raise SamplerLostError(error.problem, error.remedy) from None
            except StoreError as error:
                raise FeedError(error.problem, error.remedy) from None
            if "lost" in reply.fields:
                problem, remedy = reply.fields["lost"]
                raise SamplerLostError(f"{self._sampler}: {problem}", remedy)
            if "part" in reply.fields:
                return from_fields(reply.fields["part"], _aligned(reply.arrays[0]))

    def close(self) -> None:
        """End the connection; whoever waits in `receive` is told."""
        self._channel.close()


class _SubBatches(StoreService):
    """Answers a trainer. A stream is known by its thread, which serves nothing else."""

    def __init__(
        self, waiting: Queue[_Waiting], credits: threading.Semaphore, limits: RpcLimits
    ) -> None:
        super().__init__(Shard(0), limits)
        self._operations = {"next": self._next, "ping": self._ping}
        self._waiting = waiting
        self._credits = credits
        self._trainer: int | None = None

    def end_stream(self) -> bool:
        """Whether the stream that this thread served was the trainer's."""
        if self._trainer != threading.get_ident():
            return False
        self._trainer = None
        return True

    def _next(self, asked: Any) -> tuple[Fields, tuple[np.ndarray, ...]]:
        asked.end(0)
        with self._lock:
            if self._trainer is None:
                self._trainer = threading.get_ident()
        if self._trainer != threading.get_ident():
            raise SpecError("this sampler has a trainer already", "start one for each trainer")
        try:
            found = self._waiting.get(timeout=_ANSWER_S)
        except Empty:
            return {"wait": True}, ()
        if isinstance(found, SpecError | SamplerLostError):
            # For requests that are already on their way, too.
            self._waiting.put(found)
            if isinstance(found, SamplerLostError):
                return {"lost": [found.problem, found.remedy]}, ()
            raise found
        self._credits.release()
        fields, memory = found
        return fields, (memory,)


class _SubBatchServer(RpcServer):
    """A server with a trainer's questions."""

    def __init__(
        self,
        operations: _SubBatches,
        credentials: Credentials,
        host: str,
        port: int,
        on_end: Callable[[], None],
        limits: RpcLimits,
    ) -> None:
        super().__init__(operations, credentials, host, port, limits)
        self._parts = operations
        self._on_end = on_end

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answer a trainer until it has enough."""
        try:
            super().do_exchange(context, descriptor, reader, writer)
        finally:
            if self._parts.end_stream():
                self._on_end()


def _aligned(memory: np.ndarray) -> np.ndarray:
    """The same bytes where arrays of numbers may begin."""
    return memory if memory.ctypes.data % _ALIGN == 0 else memory.copy()
