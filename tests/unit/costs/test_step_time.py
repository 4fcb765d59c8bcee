"""Step times fitted to counts."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.core.job import Job, Role
from headrace.core.profile import BatchTraffic, Profile, StepSample, StoreTraffic, TaskTime
from headrace.core.step_counts import StepCounts
from headrace.costs.step_time import fit_step_time, with_estimated_steps

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


def test_few_steps_have_a_wider_interval() -> None:
    counts, times = steps(80, noise=0.1)
    few = fit_step_time(counts[:10], times[:10])
    assert few.factors[0] == pytest.approx(1 / few.factors[1])
    many = fit_step_time(counts, times)
    assert few.factors[1] > many.factors[1]
    inside = [
        low <= seconds <= high
        for seconds, (low, high) in zip(times[10:], map(few.interval, counts[10:]), strict=True)
    ]
    assert np.mean(inside) >= 0.9


def profile_of(samples: tuple[StepSample, ...]) -> Profile:
    return Profile(
        seeds_per_sampler=100,
        task_times={
            Role.TRAINER: {"fast": TaskTime(mean=0.1), "slow": TaskTime(mean=0.2)},
            Role.SAMPLER: {"default": TaskTime(mean=0.05)},
        },
        store_traffic=StoreTraffic(),
        batch_traffic=BatchTraffic(bytes_per_seed=0),
        steps=samples,
    )


def samples_of(num: int, first: int = 0) -> tuple[StepSample, ...]:
    counts, times = steps(first + num)
    return tuple(
        StepSample(seeds=10.0, counts=own, times={"fast": seconds, "slow": 3 * seconds})
        for own, seconds in list(zip(counts, times, strict=True))[first:]
    )


def test_times_of_a_step_that_never_ran_are_estimated_by_class() -> None:
    counts, times = steps(21)
    job = Job(trainers=1, batch_size=50)
    profile = profile_of(samples_of(10))
    assert profile.version == 2
    found = with_estimated_steps(profile, [profile_of(samples_of(10, first=10))], counts[20], job)
    scale = found.seed_scale(Role.TRAINER, job)
    assert scale == 0.5
    for kind, factor in (("fast", 1), ("slow", 3), ("default", 2)):
        time = found.task_time(Role.TRAINER, kind)
        assert time.mean * scale == pytest.approx(factor * times[20], rel=0.01)
        assert time.num_samples == 20
        assert time.interval is not None
        assert time.interval[0] <= time.mean <= time.interval[1]
    assert found.task_times[Role.SAMPLER] == profile.task_times[Role.SAMPLER]
    assert Profile.model_validate_json(found.model_dump_json()) == found


def test_measured_times_stay_for_a_step_that_ran_and_without_enough_steps() -> None:
    counts, _ = steps(5)
    job, profile = Job(trainers=1, batch_size=50), profile_of(samples_of(4))
    assert with_estimated_steps(profile, (), counts[3], job) is profile
    assert with_estimated_steps(profile, (), counts[4], job) is not profile
    few = profile_of(samples_of(2))
    assert with_estimated_steps(few, (), counts[4], job) is few
    # Two classes with few steps each.
    assert with_estimated_steps(few, [few], counts[4], job) is not few


def test_a_class_with_few_steps_has_the_time_of_all() -> None:
    counts, times = steps(13)
    samples = samples_of(12)
    only_fast = tuple(
        each.model_copy(update={"times": {"fast": each.times["fast"]}}) for each in samples[2:]
    )
    profile = profile_of((*samples[:2], *only_fast))
    found = with_estimated_steps(profile, (), counts[12], Job(trainers=1, batch_size=100))
    assert set(found.task_times[Role.TRAINER]) == {"fast", "default"}
    assert found.task_time(Role.TRAINER, "slow").mean > 0.9 * times[12]
