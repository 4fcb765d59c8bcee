"""A trainer that is told to stop goes on until it can save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether SIGINT arrived while somebody listened for it."""

    def __init__(self) -> None:
        self.is_set = False
        self._is_kept = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Let SIGINT set the flag instead of raising `KeyboardInterrupt`; a second one raises it.

        Whoever sees the flag calls `keep`. If nobody does, the script is where it cannot save: the
        shell sends SIGINT again halfway through its grace period.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._take)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def keep(self) -> None:
        """Do not interrupt any more: all trainers save now, even if SIGINT arrives only later."""
        self._is_kept = True

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.is_set and not self._is_kept:
            raise KeyboardInterrupt
        self.is_set = True
