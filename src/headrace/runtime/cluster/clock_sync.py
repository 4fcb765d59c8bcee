"""Clock offsets between machines."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.core.trace import ClockOffset

Clock = Callable[[], float]


def clock_offset(ping: Clock, clock: Clock = time.monotonic, num_pings: int = 16) -> ClockOffset:
    """Estimate a clock offset; `ping` returns the remote time. The shortest round trip counts."""
    found = []
    for _ in range(num_pings):
        before_s = clock()
        there_s = ping()
        after_s = clock()
        found.append((after_s - before_s, (before_s + after_s) / 2 - there_s))
    round_trip_s, offset_s = min(found)
    return ClockOffset(offset_s, round_trip_s / 2)
