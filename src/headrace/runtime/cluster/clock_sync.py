"""How far the clocks of two machines are apart."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.core.trace import ClockOffset

Clock = Callable[[], float]


def clock_offset(ping: Clock, clock: Clock = time.monotonic, num_pings: int = 16) -> ClockOffset:
    """Ask another machine for its time; of several answers the fastest says most.

    Args:
        ping: Asks once, and waits for the other machine's time.
        clock: Seconds here.
        num_pings: How often to ask.
    """
    found = []
    for _ in range(num_pings):
        before_s = clock()
        there_s = ping()
        after_s = clock()
        found.append((after_s - before_s, (before_s + after_s) / 2 - there_s))
    round_trip_s, offset_s = min(found)
    return ClockOffset(offset_s, round_trip_s / 2)
