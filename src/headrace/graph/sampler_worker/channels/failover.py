"""Failover of samplers: a lost sampler is replaced by one that starts at the next batch.

Batches depend only on their position (with scores, also on the newest model, which a replacement
gets), so training is unaffected. Sub-batches that the trainer has
received stay valid; those queued at the lost sampler are sampled again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.graph.sampler_worker.channels.errors import SamplerLostError
from headrace.graph.sampler_worker.channels.shm import SubBatchReceiver
from headrace.graph.sampler_worker.channels.sub_batch import SubBatch

Replace = Callable[[int, int, str], SubBatchReceiver]
"""Starts a replacement, given its first epoch and batch and the reason.

Raises `SamplerLostError` if a later attempt may succeed."""

PAUSES_S = (0.0, 2.0, 10.0)
"""Pause before each attempt: the driver needs time to detect further lost tasks or machines."""


class LostReceiver:
    """Receiver of a sampler that was lost before a connection was made."""

    def __init__(self, error: SamplerLostError) -> None:
        self._error = error

    def receive(self) -> SubBatch:
        """Raise the error."""
        raise self._error

    def send_model(self, model: bytes) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class FailoverReceiver:
    """Receives sub-batches from a sampler and its replacements.

    Args:
        receiver: Receiver of the first sampler.
        replace: Starts a replacement.
        first: Epoch and batch of the first sub-batch.
        tell: Called with a message for the user whenever a sampler is replaced.
        num_shards: Sub-batches of the sampler per batch.
        pauses_s: Pause before each attempt; their number bounds consecutive failed attempts.
    """

    def __init__(
        self,
        sampler: str,
        receiver: SubBatchReceiver,
        replace: Replace,
        first: tuple[int, int],
        batches_per_epoch: int,
        notify: Callable[[str], None] = lambda _: None,
        num_shards: int = 1,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.sampler = sampler
        self._num_shards = num_shards
        self._pauses_s = pauses_s
        # Sub-batches of the next batch: received so far, and to skip after a failover.
        self._num_received = self._num_to_skip = 0
        self._receiver = receiver
        self._replace = replace
        self._next = first
        self._batches_per_epoch = batches_per_epoch
        self._notify = notify
        self._num_attempts = 0
        self._model: bytes | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def receive(self) -> SubBatch:
        """Wait for the next sub-batch, replacing lost samplers.

        Raises:
            PrefetchError: The sampler failed, or all attempts to replace it failed.
            HeadraceError: No replacement can be started.
        """
        while True:
            try:
                sub_batch = self._receiver.receive()
            except SamplerLostError as error:
                self._fail_over(error)
                continue
            self._num_attempts = 0
            if self._num_to_skip:
                self._num_to_skip -= 1
                continue
            self._num_received += 1
            if self._num_received == self._num_shards:
                self._num_received = 0
                is_last = sub_batch.batch + 1 >= self._batches_per_epoch
                epoch, batch = sub_batch.epoch, sub_batch.batch + 1
                self._next = (epoch + 1, 0) if is_last else (epoch, batch)
            return sub_batch

    def send_model(self, model: bytes) -> None:
        """Send the newest model to the sampler, and to its replacements."""
        with self._lock:
            self._model = model
            self._receiver.send_model(model)

    def close(self) -> None:
        """Close the connection and release threads in `receive`."""
        self._closed.set()
        with self._lock:
            self._receiver.close()

    def _fail_over(self, error: SamplerLostError) -> None:
        self._receiver.close()
        while self._num_attempts < len(self._pauses_s):
            self._closed.wait(self._pauses_s[self._num_attempts])
            if self._closed.is_set():
                break
            self._num_attempts += 1
            epoch, batch = self._next
            where = f"batch {batch} of epoch {epoch}"
            self._notify(f"{error.problem}; starting a replacement at {where}")
            try:
                replacement = self._replace(epoch, batch, error.problem)
            except SamplerLostError as next_error:
                error = next_error
                continue
            with self._lock:
                self._receiver = replacement
                if self._model is not None:
                    replacement.send_model(self._model)
            self._num_to_skip = self._num_received
            if self._closed.is_set():
                replacement.close()
                break
            return
        raise error
