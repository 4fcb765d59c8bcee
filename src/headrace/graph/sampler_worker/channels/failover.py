"""A sampler that is lost is replaced: batches are functions of their position, so nobody notices.

What the lost one had made ahead is made again; what was handed over stays with the trainer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headrace.graph.sampler_worker.channels.errors import SamplerLostError
from headrace.graph.sampler_worker.channels.shm import SubBatchReceiver
from headrace.graph.sampler_worker.channels.sub_batch import SubBatch

Replace = Callable[[int, int, str], SubBatchReceiver]
"""Has another sampler started: epoch and batch with which it begins, and why it must.

Fails with `SamplerLostError` if a later try may do better."""

PAUSES_S = (0.0, 2.0, 10.0)
"""Before each try. Whoever watches the run needs time to see that more than a sampler is lost."""


class LostReceiver:
    """Stands for a sampler that was lost before anybody could reach it.

    Args:
        error: What became of it.
    """

    def __init__(self, error: SamplerLostError) -> None:
        self._error = error

    def receive(self) -> SubBatch:
        """Say so."""
        raise self._error

    def close(self) -> None:
        """There is nothing to close."""


class FailoverReceiver:
    """Takes parts from a sampler, and from others that take its place.

    Args:
        sampler: Task and machine, for messages.
        receiver: Of the first sampler.
        replace: Starts another one.
        first: Epoch and batch of the first part.
        batches_per_epoch: As the sampler was told.
        tell: Called with a line for people whenever a sampler is replaced.
        num_lanes: Parts that it makes of every batch.
        pauses_s: Before each try; as many samplers may be lost before one hands anything over.

    Attributes:
        sampler: Task and machine, for messages.
    """

    def __init__(
        self,
        sampler: str,
        receiver: SubBatchReceiver,
        replace: Replace,
        first: tuple[int, int],
        batches_per_epoch: int,
        tell: Callable[[str], None] = lambda _: None,
        num_lanes: int = 1,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        self.sampler = sampler
        self._num_lanes = num_lanes
        self._pauses_s = pauses_s
        # Of the next batch: how many parts were handed over, and how many come a second time.
        self._num_taken = self._num_again = 0
        self._receiver = receiver
        self._replace = replace
        self._next = first
        self._batches_per_epoch = batches_per_epoch
        self._tell = tell
        self._num_tries = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def receive(self) -> SubBatch:
        """Wait for the next part, however many samplers it takes.

        Raises:
            FeedError: The sampler failed, or several were lost before they handed anything over.
            HeadraceError: No other one can be started.
        """
        while True:
            try:
                part = self._receiver.receive()
            except SamplerLostError as error:
                self._fail_over(error)
                continue
            self._num_tries = 0
            if self._num_again:
                self._num_again -= 1
                continue
            self._num_taken += 1
            if self._num_taken == self._num_lanes:
                self._num_taken = 0
                is_last = part.batch + 1 >= self._batches_per_epoch
                self._next = (part.epoch + 1, 0) if is_last else (part.epoch, part.batch + 1)
            return part

    def close(self) -> None:
        """End the connection; whoever waits in `receive` is told."""
        self._closed.set()
        with self._lock:
            self._receiver.close()

    def _fail_over(self, error: SamplerLostError) -> None:
        self._receiver.close()
        while self._num_tries < len(self._pauses_s):
            self._closed.wait(self._pauses_s[self._num_tries])
            if self._closed.is_set():
                break
            self._num_tries += 1
            epoch, batch = self._next
            self._tell(
                f"{error.problem}; another one takes its place, from batch {batch} of epoch {epoch}"
            )
            try:
                other = self._replace(epoch, batch, error.problem)
            except SamplerLostError as again:
                error = again
                continue
            with self._lock:
                self._receiver = other
            self._num_again = self._num_taken
            if self._closed.is_set():
                other.close()
                break
            return
        raise error
