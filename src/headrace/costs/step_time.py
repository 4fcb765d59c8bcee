"""Time of a training step from what it does, fitted to measured steps of a machine class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import NormalDist

import numpy as np

from headrace.core.job import Job, Role
from headrace.core.profile import Profile, StepSample, TaskTime
from headrace.core.step_counts import StepCounts

COVERAGE = 0.9
"""Share of steps that are within the stated interval."""

LEAST_STEPS = 3
"""Measured steps of a machine class for an estimate."""

_MANY = round(2 / (1 - COVERAGE))
"""Measured steps from which quantiles of errors have samples beyond them."""

_SAME = 0.02
"""Relative difference of counts below which a step is the measured one."""


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


TYPICAL = StepTimeModel((2.1e-3, 0.0, 8.4e-12, 1.3e-10, 1.8e-10, 0.0, 1.2e-10), (1.0, 1.0), 270)
"""Fit to 270 steps on one core of 2.5 GHz (`benchmarks/memory.py --only transfer`, 2026-11-19).

Only compares settings: trials of machines that were not measured are ordered by it.
"""


def fit_step_time(
    counts: Sequence[StepCounts], seconds: Sequence[float], groups: Sequence[object] | None = None
) -> StepTimeModel:
    """Fit a model to measured steps; relative errors count.

    The interval is that of errors of models fitted without the step's group: their quantiles, or
    Student's t of their logarithms if there are few steps.

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
    if len(times) < _MANY:
        spread = float(np.sqrt((np.log(np.maximum(ratios, 1e-12)) ** 2).mean()))
        half = student(max(1, len(times) - 1), 1 - tail) * spread
        low, high = math.exp(-half), math.exp(half)
    else:
        low, high = np.quantile(ratios, [tail, 1 - tail])
    return StepTimeModel(
        tuple(map(float, coefficients)), (float(min(low, 1.0)), float(max(high, 1.0))), len(times)
    )


def with_estimated_steps(
    profile: Profile, others: Sequence[Profile], counts: StepCounts, job: Job
) -> Profile:
    """A profile whose trainer times are estimated from what a step does.

    Steps of all profiles are fitted by machine class; a class with too few of them has the time of
    all classes. The times stay if there are too few, or if a step of the profile does the same.

    Args:
        profile: Times and volumes of the job.
        others: Profiles of other settings.
        counts: What a step of the job does.
        job: The job.
    """
    if any(_is_same(sample.counts, counts) for sample in profile.steps):
        return profile
    samples = [(n, each) for n, own in enumerate((profile, *others)) for each in own.steps]
    kinds = {kind for _, sample in samples for kind in sample.times}
    times = {kind: [(n, s, s.times[kind]) for n, s in samples if kind in s.times] for kind in kinds}
    times["default"] = [(n, s, float(np.mean(list(s.times.values())))) for n, s in samples]
    estimated = {
        kind: _estimated(rows, counts, profile.seed_scale(Role.TRAINER, job))
        for kind, rows in times.items()
        if len(rows) >= LEAST_STEPS
    }
    if not estimated:
        return profile
    measured = profile.task_times.get(Role.TRAINER, {})
    for kind in estimated.keys() & measured.keys():
        varied = {"variation": measured[kind].variation}
        estimated[kind] = estimated[kind].model_copy(update=varied)
    task_times = {**profile.task_times, Role.TRAINER: estimated}
    return profile.model_copy(update={"version": 2, "task_times": task_times})


def _estimated(
    rows: Sequence[tuple[int, StepSample, float]], counts: StepCounts, scale: float
) -> TaskTime:
    """Time of a step, divided by the factor of the job's seeds."""
    numbers = [number for number, _, _ in rows]
    model = fit_step_time(
        [StepCounts(*sample.counts) for _, sample, _ in rows],
        [seconds for _, _, seconds in rows],
        # Steps of one profile are alike: with several, the error is that for another script.
        numbers if len(set(numbers)) >= LEAST_STEPS else None,
    )
    low, high = model.interval(counts)
    return TaskTime(
        mean=model.seconds(counts) / scale,
        num_samples=model.num_samples,
        interval=(low / scale, high / scale),
    )


def _is_same(measured: Sequence[float], counts: StepCounts) -> bool:
    return bool(np.allclose(measured, counts, rtol=_SAME, atol=0.0))


def student(num: int, probability: float = 0.975) -> float:
    """Quantile of Student's t by expansion around the normal; error 1 % at `num` = 4."""
    z = NormalDist().inv_cdf(probability)
    first = (z**3 + z) / (4 * num)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * num**2)
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * num**3)
    return z + first + second + third


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
