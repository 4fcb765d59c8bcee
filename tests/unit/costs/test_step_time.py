"""Step times fitted to counts."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.step_counts import StepCounts
from headrace.costs.step_time import fit_step_time

TRUE = np.array([1e-3, 5e-6, 2e-11, 0.0, 3e-10, 4e-10, 1e-10])


def steps(num: int, noise: float = 0.0) -> tuple[list[StepCounts], list[float]]:
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.1, 1.0, (num, 6)) * [1e3, 1e9, 1e8, 1e8, 1e8, 1e9]
    counts = [StepCounts(*map(float, row)) for row in rows]
    times = [
        float(TRUE @ (1.0, *own)) * (1 + noise * float(rng.standard_normal())) for own in counts
    ]
    return counts, times


def test_exact_times_are_found() -> None:
    counts, times = steps(30)
    model = fit_step_time(counts, times)
    np.testing.assert_allclose(model.coefficients, TRUE, rtol=1e-6, atol=1e-14)
    low, high = model.interval(counts[0])
    assert (low, high) == pytest.approx((times[0], times[0]), rel=1e-6)


def test_coefficients_are_never_negative() -> None:
    counts, times = steps(12, noise=0.3)
    assert min(fit_step_time(counts, times).coefficients) >= 0


def test_the_interval_covers_new_steps() -> None:
    counts, times = steps(400, noise=0.1)
    model = fit_step_time(counts[:100], times[:100])
    inside = [
        low <= seconds <= high
        for seconds, (low, high) in zip(times[100:], map(model.interval, counts[100:]), strict=True)
    ]
    assert 0.84 <= np.mean(inside) <= 0.96


def test_a_group_is_left_out_as_a_whole() -> None:
    counts, times = steps(40)
    # One group is twice as slow as its counts say.
    groups = [number % 4 for number in range(40)]
    slowed = [time * (2 if group == 0 else 1) for time, group in zip(times, groups, strict=True)]
    assert fit_step_time(counts, slowed, groups).factors[1] > 1.5
