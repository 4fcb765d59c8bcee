"""Whether somebody wants a run to end, as told by signals."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a run to end: Ctrl-C, whoever manages processes, a terminal that closes."""


class Interruption:
    """A flag that handlers of signals may set at any moment.

    Not a `threading.Event`: its `set` takes a lock that the interrupted thread may hold, in `wait`
    or in the handler of a signal before, and then that thread waits for itself.
    """

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Ask for the end."""
        self._is_set = True

    def is_set(self) -> bool:
        """Whether the end was asked for."""
        return self._is_set

    def wait(self, timeout_s: float) -> bool:
        """Let some time pass; whether the end was asked for."""
        if not self._is_set:
            time.sleep(timeout_s)
        return self._is_set


@contextmanager
def signals_handled(handler: Handler) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGHUP for a while."""
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
    """Let Ctrl-C, SIGTERM and SIGHUP set a flag."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        interruption.set()

    with signals_handled(interrupt):
        yield
