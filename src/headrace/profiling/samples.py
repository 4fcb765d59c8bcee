"""Means of measured values, how they vary, and how sure one can be of them."""

from __future__ import annotations

import math

import numpy as np

from headrace.core.profile import CONSTANT, TaskTime, Variation

MAX_QUANTILES = 64
"""Equally likely factors that a profile keeps of each distribution."""

NOTHING_KNOWN = 1.0
"""Relative error of what was not measured, or cannot be told from what was."""

_Z = 1.959964  # 97.5 % of a normal distribution


def relative_error(samples: np.ndarray) -> float:
    """Half of the 95 % interval of a mean, as a share of the mean."""
    num = len(samples)
    mean = float(samples.mean()) if num else 0.0
    if num < 2:
        return NOTHING_KNOWN
    if mean <= 0:
        return 0.0
    return round(student(num - 1) * float(samples.std(ddof=1)) / math.sqrt(num) / mean, 6)


def student(num: int) -> float:
    """97.5 % of Student's distribution, by its expansion around the normal one.

    Args:
        num: Degrees of freedom; at 4 it is right to 1 %, above to less.
    """
    first = (_Z**3 + _Z) / (4 * num)
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * num**2)
    third = (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / (384 * num**3)
    return _Z + first + second + third


def variation_of(samples: np.ndarray) -> Variation:
    """Equally likely factors around the mean."""
    mean = float(samples.mean()) if len(samples) else 0.0
    if mean <= 0 or np.ptp(samples) <= 1e-9 * mean:
        return CONSTANT
    num = min(MAX_QUANTILES, len(samples))
    factors = np.quantile(samples, (np.arange(num) + 0.5) / num) / mean
    return Variation(quantiles=tuple(float(f"{factor:.6g}") for factor in factors))


def task_time_of(samples: np.ndarray) -> TaskTime:
    """Time of a role on a class of machines; at least one sample."""
    return TaskTime(
        mean=float(samples.mean()),
        variation=variation_of(samples),
        num_samples=len(samples),
        relative_error=relative_error(samples),
    )
