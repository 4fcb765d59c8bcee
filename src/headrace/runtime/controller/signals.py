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

_ONE_WISH_S = 0.5


class Interruption:
    """Counts how often the end was asked for, by handlers of signals at any moment.

    Not a `threading.Event`: its `set` takes a lock that the interrupted thread may hold, in `wait`
    or in the handler of a signal before, and then that thread waits for itself.
    """

    def __init__(self) -> None:
        self.num_times, self._set_s = 0, 0.0

    def set(self) -> None:
        """Ask for the end; one wish may come as several signals at once."""
        now_s = time.monotonic()
        if not self.num_times or now_s >= self._set_s + _ONE_WISH_S:
            self.num_times += 1
            self._set_s = now_s

    def is_set(self) -> bool:
        """Whether the end was asked for."""
        return self.num_times > 0


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
