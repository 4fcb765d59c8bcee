"""Defers SIGINT until a trainer can save."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether SIGINT arrived inside `intercept_sigint`."""

    def __init__(self) -> None:
        self.is_set = False
        self._is_kept = False

    @contextmanager
    def intercept_sigint(self) -> Iterator[None]:
        """Let SIGINT set the flag instead of raising `KeyboardInterrupt`; a second one raises it.

        If no code reads the flag and calls `keep`, the script cannot save. The task actor sends
        SIGINT again halfway through its grace period.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGINT, self._on_sigint)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def keep(self) -> None:
        """Ignore further SIGINTs: all trainers save now."""
        self._is_kept = True

    def _on_sigint(self, number: int, frame: FrameType | None) -> None:
        if self.is_set and not self._is_kept:
            raise KeyboardInterrupt
        self.is_set = True
