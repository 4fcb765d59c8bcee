"""Selection of steady iterations and detection of pauses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.trace import Trace
from headrace.observability.report.timelines import Timelines, timelines_of

FEWEST_STEADY = 8
"""With fewer steady iterations, all iterations after the skipped ones are counted."""


@dataclass(frozen=True)
class Steady:
    """The steady iterations of a trace.

    Attributes:
        timelines: Times of all trainers.
        counted: Whether each iteration is steady.
        took_s: From the end of the previous iteration to its own end; `nan` for the first.
        pauses: Iterations after a pause of a trainer or with restarted tasks.
        num_skipped: Number of first iterations that are excluded.
    """

    timelines: Timelines
    counted: np.ndarray
    took_s: np.ndarray
    pauses: np.ndarray
    num_skipped: int

    @property
    def num(self) -> int:
        """Number of steady iterations."""
        return int(self.counted.sum())

    @property
    def time_s(self) -> float | None:
        """Mean time of a steady iteration."""
        return float(self.took_s[self.counted].mean()) if self.num else None

    @property
    def pauses_s(self) -> float:
        """Duration of pauses beyond the mean time per iteration."""
        usual_s = self.time_s or 0.0
        return float(np.maximum(self.took_s[self.pauses] - usual_s, 0.0).sum())

    @property
    def span_s(self) -> float:
        """Total time of the steady iterations."""
        return float(self.took_s[self.counted].sum())

    def stretch(self, num: int, before: int | None = None) -> tuple[int, int] | None:
        """First and last of consecutive steady iterations whose time is closest to the mean.

        The last tenth is avoided, because NICs become idle when no batch is left to sample.

        Args:
            num: Number of iterations; fewer if there is no such sequence.
            before: Only iterations before this one, if possible.
        """
        if not self.num or self.time_s is None:
            return None
        num_all = len(self.counted)
        before = min(num_all if before is None else before, num_all - num_all // 10)
        for length in range(num, 0, -1):
            sums = np.convolve(self.counted, np.ones(length), mode="valid")
            firsts = np.flatnonzero(sums == length)
            if len(firsts) and firsts[0] + length <= before:
                firsts = firsts[firsts + length <= before]
            if len(firsts):
                took = np.array([self.took_s[n : n + length].sum() for n in firsts])
                first = int(firsts[np.argmin(np.abs(took - length * self.time_s))])
                return first, first + length - 1
        return None


def steady_iterations(trace: Trace, skip: int, window: int = 0) -> Steady:
    """Find the steady iterations of a trace.

    A pause is an iteration before which a trainer was idle for longer than an iteration, such as
    for validation, or in which tasks were restarted. Pauses are excluded, and the `window`
    iterations after them, whose batches were sampled meanwhile.
    """
    lines = timelines_of(trace)
    ends_s = lines.ends_s
    took_s = np.diff(ends_s, prepend=np.nan)
    is_known = ~np.isnan(took_s)
    is_known[: max(skip, 1)] = False
    pauses = np.zeros(len(took_s), dtype=bool)
    if is_known.any():
        usual_s = float(np.median(took_s[is_known]))
        _, others_s = lines.gaps_s()
        idle_s = np.nan_to_num(others_s).max(axis=0)
        pauses = is_known & (idle_s > usual_s) & (took_s > 2 * usual_s)
        for mark in trace.marks:
            after = int(np.searchsorted(np.nan_to_num(ends_s, nan=np.inf), mark.at_s))
            if after < len(pauses):
                pauses[after] = is_known[after]
    near = pauses.copy()
    for ahead in range(1, window + 1):
        near[ahead:] |= pauses[:-ahead]
    counted = is_known & ~near
    if counted.sum() < FEWEST_STEADY:
        counted = is_known & ~pauses
    return Steady(lines, counted, took_s, np.flatnonzero(pauses), min(skip, len(took_s)))
