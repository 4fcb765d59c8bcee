"""When nothing moves any more: when to say so, when to look for a cut, and whom to accuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

SAY_AFTER_S = 10.0
"""How long nothing may move before somebody is told."""

SAY_EVERY_S = 12.0
"""How often it is said again: nobody who watches is left without a word for 15 s."""

PROBE_AFTER_S = 45.0
"""When machines try whether they reach each other: a cut of 10 s is over by then, and whoever was
cut off for 30 s has been given up by those who asked it."""


@dataclass(frozen=True)
class Stall:
    """Since when nothing moves.

    Attributes:
        moved_s: When something moved last.
        told_s: When it was said last that nothing does; none if it was not.
        has_probed: Whether machines have been asked whom they reach.
    """

    moved_s: float
    told_s: float | None = None
    has_probed: bool = False


def look(stall: Stall, now_s: float) -> tuple[Stall, bool, bool]:
    """Whether it is time to say that nothing moves, and whether to look for a cut."""
    still_s = now_s - stall.moved_s
    next_s = stall.moved_s + SAY_AFTER_S if stall.told_s is None else stall.told_s + SAY_EVERY_S
    says, probes = now_s >= next_s, still_s >= PROBE_AFTER_S and not stall.has_probed
    if says:
        stall = replace(stall, told_s=now_s)
    if probes:
        stall = replace(stall, has_probed=True)
    return stall, says, probes


def describe(still_s: float, waits: Mapping[str, str], has_begun: bool = True) -> str:
    """Who waits for whom, in a line.

    Args:
        still_s: For how long nothing has moved.
        waits: What tasks say that they wait for, by task.
        has_begun: Whether an iteration was ever done.
    """
    told = [f"{name} waits for {what}" for name, what in waits.items()]
    more = f" and {len(told) - 3} more wait" if len(told) > 3 else ""
    reason = "; ".join(told[:3]) + more
    begin = "no iteration" if has_begun else "no first iteration"
    return f"{begin} for {still_s:.0f} s: {reason or 'nobody says why'}"


def accuse(cuts: Collection[tuple[str, str]], home: str) -> str | None:
    """The machine to do without, so that as many as possible of the others reach each other.

    Args:
        cuts: Pairs of machines of which the first does not reach the second.
        home: The machine of the driver, which cannot do without itself.

    Returns:
        None if everybody reaches everybody.
    """
    counts: Counter[str] = Counter()
    for pair in cuts:
        counts.update(pair)
    counts.pop(home, None)
    # Of two that do not reach each other only, either will do.
    return max(sorted(counts), key=lambda name: counts[name]) if counts else None
