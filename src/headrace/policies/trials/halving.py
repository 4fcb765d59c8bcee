"""Successive halving: a trial that is not among the best at a rung stops.

Asynchronous, as in ASHA (Li et al., 2020, Algorithm 2, with stopping instead of promotion): a trial
is compared with the trials that reached the rung before it, so that no trial waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Halving:
    """Rules of successive halving.

    Attributes:
        factor: One trial of so many continues at each rung.
        first: Reports of a trial before the first rung; each next rung has `factor` times as many.
    """

    factor: int = 3
    first: int = 1

    def rungs(self, num_reports: int) -> list[int]:
        """Rungs that a trial with so many reports has reached."""
        found, at = [], self.first
        while at <= num_reports:
            found.append(at)
            at *= self.factor
        return found

    def stops(self, number: int, values: Mapping[int, Sequence[float]]) -> int | None:
        """The rung at which a trial stops; None if it continues.

        Args:
            number: Of the trial.
            values: Reported values of all trials so far, by number; larger ones are better.
        """
        own = values[number]
        for rung in self.rungs(len(own)):
            reached = [found[rung - 1] for found in values.values() if len(found) >= rung]
            num_kept = max(1, len(reached) // self.factor)
            # Fewer trials than the factor say nothing yet.
            if len(reached) >= self.factor and own[rung - 1] < sorted(reached)[-num_kept]:
                return rung
        return None
