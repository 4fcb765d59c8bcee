"""A trainer that is told to stop goes on until it can save, but not for long."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE_S = 2.0
"""How long a step may take to end; shells kill after twice that, and the rest is for saving."""


class StopRequest:
    """Whether Ctrl-C was heard while somebody listened for it."""

    def __init__(self) -> None:
        self.is_set = False
        self._is_kept = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Let Ctrl-C set the flag instead of raising `KeyboardInterrupt`, which comes later.

        Who sees the flag calls `keep`; if nobody does in time, the script is where it cannot save,
        and is interrupted as it would have been.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
        signal.signal(signal.SIGINT, self._take)
        try:
            yield
        finally:
            if self.is_set:
                signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def keep(self) -> None:
        """Somebody will stop now: do not interrupt, even if Ctrl-C is heard here only later."""
        self._is_kept = True
        if self.is_set:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True
        if self._is_kept:
            return
        # A timer of the kernel: a thread may not be started wherever a signal may come.
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
