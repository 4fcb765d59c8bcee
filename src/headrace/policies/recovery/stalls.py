"""Stalled runs: when to log, when to probe the network, which machine to exclude."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

LOG_AFTER_S = 10.0
"""Time without progress before the first log line."""

LOG_INTERVAL_S = 12.0
"""Interval between log lines: a line at least every 15 s."""

PROBE_AFTER_S = 45.0
"""Time without progress before machines probe each other: a network cut of 10 s is over by then,
and clients have given up on a peer that was unreachable for 30 s."""


@dataclass(frozen=True)
class Stall:
    """State of a run without progress.

    Attributes:
        moved_s: Time of the last progress.
        told_s: Time of the last log line; None if there was none.
        has_probed: Whether machines have probed each other.
        longest_s: Longest time without progress that has ended, since the first iteration.
    """

    moved_s: float
    reported_s: float | None = None
    has_probed: bool = False
    longest_s: float = 0.0


def check(stall: Stall, now_s: float) -> tuple[Stall, bool, bool]:
    """Update the state; decide whether to log the stall and whether to probe the network."""
    still_s = now_s - stall.moved_s
    next_s = stall.moved_s + LOG_AFTER_S
    if stall.reported_s is not None:
        next_s = stall.reported_s + LOG_INTERVAL_S
    logs, probes = now_s >= next_s, still_s >= PROBE_AFTER_S and not stall.has_probed
    if logs:
        stall = replace(stall, reported_s=now_s)
    if probes:
        stall = replace(stall, has_probed=True)
    return stall, logs, probes


def describe(still_s: float, waits: Mapping[str, str], has_begun: bool = True) -> str:
    """One line on which task blocks which, after `still_s` without progress."""
    lines = [f"{name} waits for {what}" for name, what in waits.items()]
    more = f" and {len(lines) - 3} more wait" if len(lines) > 3 else ""
    reason = "; ".join(lines[:3]) + more
    begin = "no iteration" if has_begun else "no first iteration"
    return f"{begin} for {still_s:.0f} s: {reason or 'no task reports a reason'}"


def accuse(cuts: Collection[tuple[str, str]], home: str) -> str | None:
    """Machine to exclude so that most of the others can reach each other; None without cuts.

    In each pair of `cuts` the first machine cannot reach the second. The driver's machine `home` is
    never excluded.
    """
    counts: Counter[str] = Counter()
    for pair in cuts:
        counts.update(pair)
    counts.pop(home, None)
    # If only two machines cannot reach each other, either may be excluded.
    return max(sorted(counts), key=lambda name: counts[name]) if counts else None
