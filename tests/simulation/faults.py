"""Faults drawn from a seed, several at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = {
    "kill task": 10,
    "kill repeatedly": 3,
    "kill actor": 4,
    "kill machine": 5,
    "stop task": 4,
    "freeze actor": 3,
    "freeze machine": 4,
    "hang trainer": 1,
    "cut": 5,
    "reset": 3,
    "delay": 4,
    "reorder": 3,
    "fail call": 3,
    "full disk": 4,
    "full driver disk": 4,
    "flip bit": 4,
    "flip piece": 3,
    "flip resume": 2,
    "lose head": 3,
    "kill driver": 4,
    "power loss": 3,
    "freeze driver": 3,
    "late clock": 2,
    "interrupt": 2,
    "boot": 3,
    "damaged graph": 1,
    "other version": 1,
    "broken install": 1,
    "script error": 4,
    "change script": 3,
}
"""Kinds of faults, and how often each is drawn."""


AT_THE_BEGIN = ("other version", "broken install")
"""Faults of which tasks that run do not notice anything."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        at_s: Seconds after the begin of the run.
        victim: A number that chooses the victim among those there are.
        length_s: How long it lasts, if it ends.
    """

    kind: str
    at_s: float
    victim: int
    length_s: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_s:.1f} s for {self.length_s:.1f} s (victim {self.victim})"


def draw(seed: int, kinds: tuple[str, ...] = ()) -> tuple[Fault, ...]:
    """Faults of a run, of all kinds or of some."""
    weights = {kind: KINDS[kind] for kind in kinds or KINDS}
    source = random.Random(seed * 7919 + 1)
    num = source.choice((0, 1, 1, 2, 2, 3, 3, 4, 5, 6))
    # An undisturbed run takes half a minute.
    together_s = source.uniform(0.0, 30.0)
    faults = []
    for _ in range(num):
        kind = source.choices(list(weights), list(weights.values()))[0]
        at_s = source.uniform(0.0, 40.0)
        if source.random() < 0.5:
            at_s = together_s + source.uniform(0.0, 3.0)
        if kind in AT_THE_BEGIN and source.random() < 0.7:
            at_s = 0.0
        length_s = source.choice((0.5, 3.0, 8.0, 15.0, 30.0, 70.0)) * source.uniform(0.6, 1.4)
        faults.append(Fault(kind, at_s, source.randrange(1 << 16), length_s))
    return tuple(sorted(faults, key=lambda each: each.at_s))
