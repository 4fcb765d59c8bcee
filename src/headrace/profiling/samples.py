"""Statistics of measured values: means, variation and confidence."""

from __future__ import annotations

import math

import numpy as np

from headrace.core.profile import CONSTANT, TaskTime, Variation
from headrace.costs.step_time import student

MAX_QUANTILES = 64
"""Maximum number of quantiles per distribution in a profile."""

NOTHING_KNOWN = 1.0
"""Relative error of figures that were not measured or cannot be identified."""


def relative_error(samples: np.ndarray) -> float:
    """Half of the 95 % interval of a mean, as a fraction of the mean."""
    num = len(samples)
    mean = float(samples.mean()) if num else 0.0
    if num < 2:
        return NOTHING_KNOWN
    if mean <= 0:
        return 0.0
    return round(student(num - 1) * float(samples.std(ddof=1)) / math.sqrt(num) / mean, 6)


def variation_of(samples: np.ndarray) -> Variation:
    """Quantiles relative to the mean."""
    mean = float(samples.mean()) if len(samples) else 0.0
    if mean <= 0 or np.ptp(samples) <= 1e-9 * mean:
        return CONSTANT
    num = min(MAX_QUANTILES, len(samples))
    factors = np.quantile(samples, (np.arange(num) + 0.5) / num) / mean
    return Variation(quantiles=tuple(float(f"{factor:.6g}") for factor in factors))


def task_time_of(samples: np.ndarray) -> TaskTime:
    """Time of a role on a machine class, from at least one sample."""
    return TaskTime(
        mean=float(samples.mean()),
        variation=variation_of(samples),
        num_samples=len(samples),
        relative_error=relative_error(samples),
    )
