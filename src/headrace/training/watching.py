"""How long the exchange of gradients makes a trainer wait."""

from __future__ import annotations

import threading
from collections.abc import Callable

Tell = Callable[[float, float, int], None]
"""Takes start, end and bytes of an exchange."""


class ExchangeWatch:
    """Watches the buckets of each step; several threads may finish them.

    A trainer computes until its last bucket is ready, and waits until all have been exchanged.

    Args:
        clock: Seconds.
        tell: Told of every exchange: when the last bucket was ready, when all were there, and how
            many bytes of gradients they have.
    """

    def __init__(self, clock: Callable[[], float], tell: Tell) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._num_open = 0
        self._num_bytes = 0
        self._ready_s: float | None = None

    def begin(self, num_bytes: int, is_last: bool) -> None:
        """A bucket is ready; its exchange begins."""
        with self._lock:
            self._num_open += 1
            self._num_bytes += num_bytes
            if is_last:
                self._ready_s = self._clock()

    def end(self) -> None:
        """The exchange of a bucket has ended."""
        with self._lock:
            self._num_open -= 1
            if self._num_open or self._ready_s is None:
                return
            told = (self._ready_s, self._clock(), self._num_bytes)
            self._ready_s, self._num_bytes = None, 0
        self._tell(*told)
