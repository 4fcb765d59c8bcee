"""Time of a training step from what it does, fitted to measured steps of a machine class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from headrace.core.step_counts import StepCounts

COVERAGE = 0.9
"""Share of steps that are within the stated interval."""


@dataclass(frozen=True)
class StepTimeModel:
    """Seconds of a step as a non-negative combination of its counts.

    Attributes:
        coefficients: Seconds of a step, then per unit of each count.
        factors: Lower and upper limit of measured over estimated seconds, for `COVERAGE` of steps.
        num_samples: Measured steps.
    """

    coefficients: tuple[float, ...]
    factors: tuple[float, float]
    num_samples: int

    def seconds(self, counts: StepCounts) -> float:
        """Estimated seconds of a step."""
        return float(np.dot(self.coefficients, (1.0, *counts)))

    def interval(self, counts: StepCounts) -> tuple[float, float]:
        """Limits of a step's seconds."""
        mean = self.seconds(counts)
        return mean * self.factors[0], mean * self.factors[1]


TYPICAL = StepTimeModel((0.0, 6e-6, 2e-11, 1e-10, 3e-10, 5e-10, 1.5e-10), (1.0, 1.0), 0)
"""Orders trials of machines that were not measured."""


def fit_step_time(
    counts: Sequence[StepCounts], seconds: Sequence[float], groups: Sequence[object] | None = None
) -> StepTimeModel:
    """Fit a model to measured steps; relative errors count.

    The interval is that of errors of models fitted without the step's group.

    Args:
        counts: What each step does.
        seconds: How long each took.
        groups: Which steps are alike, e.g. of one model; every step is a group of its own if None.
    """
    rows = np.array([(1.0, *own) for own in counts])
    times = np.asarray(seconds, dtype=np.float64)
    coefficients = _non_negative(rows, times)
    labels = list(range(len(times))) if groups is None else list(groups)
    ratios = np.ones(len(times))
    for label in dict.fromkeys(labels):
        held_out = np.array([own == label for own in labels])
        if held_out.all():
            continue
        fitted = _non_negative(rows[~held_out], times[~held_out])
        ratios[held_out] = times[held_out] / np.maximum(rows[held_out] @ fitted, 1e-12)
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return StepTimeModel(
        tuple(map(float, coefficients)), (float(min(low, 1.0)), float(max(high, 1.0))), len(times)
    )


def _non_negative(rows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Least squares of relative errors with non-negative coefficients.

    There are few columns, so that all sets of positive coefficients are tried.
    """
    scaled = rows / times[:, None]
    norms = np.linalg.norm(scaled, axis=0)
    used = [column for column in range(rows.shape[1]) if norms[column] > 0]
    best, best_error = np.zeros(rows.shape[1]), float(len(times))
    for size in range(1, len(used) + 1):
        for columns in combinations(used, size):
            at = list(columns)
            solved, *_ = np.linalg.lstsq(scaled[:, at] / norms[at], np.ones(len(times)), rcond=None)
            if (solved < 0).any():
                continue
            error = float(((scaled[:, at] / norms[at]) @ solved - 1.0).__pow__(2).sum())
            if error < best_error * (1 - 1e-12):
                best_error, best = error, np.zeros(rows.shape[1])
                best[at] = solved / norms[at]
    return best
