"""Interruption of a run by signals."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run: Ctrl-C, process managers, a closed terminal."""

_DEBOUNCE_S = 0.5


class Interruption:
    """Counts interruptions; safe to set from signal handlers.

    `threading.Event.set` is not: it acquires a lock that the interrupted thread may hold, which
    deadlocks.
    """

    def __init__(self) -> None:
        self.num_times, self._set_s = 0, 0.0

    def set(self) -> None:
        """Count an interruption; signals within 0.5 s count once."""
        now_s = time.monotonic()
        if not self.num_times or now_s >= self._set_s + _DEBOUNCE_S:
            self.num_times += 1
            self._set_s = now_s

    def is_set(self) -> bool:
        """Whether the run was interrupted."""
        return self.num_times > 0


@contextmanager
def signals_handled(handler: Handler) -> Iterator[None]:
    """Handle SIGINT, SIGTERM and SIGHUP inside the context."""
    before = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextmanager
def signals_set(interruption: Interruption) -> Iterator[None]:
    """Set `interruption` on SIGINT, SIGTERM and SIGHUP inside the context."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        interruption.set()

    with signals_handled(interrupt):
        yield
