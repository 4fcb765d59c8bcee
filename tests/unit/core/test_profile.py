from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from headrace.core.errors import SpecError
from headrace.core.job import Job, Role
from headrace.core.profile import NUM_QUANTILES, Profile, StoreTraffic, TaskTime, Variation


def profile_of(**task_times: object) -> Profile:
    return Profile.model_validate(
        {
            "task_times": task_times,
            "store_traffic": {"bytes_per_seed": "1KB"},
            "batch_traffic": {"bytes_per_seed": "1KB"},
        }
    )


def test_constant() -> None:
    np.testing.assert_array_equal(Variation().factors(), [1.0])
    np.testing.assert_array_equal(Variation(peak_to_mean=1.0).factors(), [1.0])


@pytest.mark.parametrize("peak", [1.08, 1.16, 1.5, 2.0, 2.5, 4.0])
def test_peak_to_mean(peak: float) -> None:
    factors = Variation(peak_to_mean=peak).factors()
    assert len(factors) == NUM_QUANTILES
    assert factors.mean() == pytest.approx(1.0, rel=1e-12)
    assert factors.min() >= 0
    # The largest quantile stands for the last 1/256 of the probability: just below the peak.
    assert peak * 0.98 < factors.max() <= peak
    assert (np.diff(factors) >= 0).all()


def test_both_shapes_meet_at_two() -> None:
    below = Variation(peak_to_mean=2.0 - 1e-9).factors()
    above = Variation(peak_to_mean=2.0 + 1e-9).factors()
    np.testing.assert_allclose(below, above, atol=1e-6)


def test_quantiles_are_normalised() -> None:
    np.testing.assert_allclose(Variation(quantiles=(1.0, 3.0)).factors(), [0.5, 1.5])


@pytest.mark.parametrize(
    "fields",
    [
        {"peak_to_mean": 0.9},
        {"peak_to_mean": 2, "quantiles": [1]},
        {"quantiles": [0, 0]},
        {"quantiles": [1, -1, 3]},
        {"quantiles": [float("nan")]},
        {"peak_to_mean": float("inf")},
    ],
)
def test_impossible_variations(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Variation.model_validate(fields)


def test_a_bare_duration_is_constant() -> None:
    assert TaskTime.model_validate("20ms") == TaskTime(mean=0.02)
    assert TaskTime.model_validate({"mean": "20ms"}) == TaskTime(mean=0.02)


def test_task_time_falls_back_to_default() -> None:
    profile = profile_of(trainer={"v100": "10ms", "default": "20ms"}, sampler={"v100": "1ms"})
    assert profile.task_time(Role.TRAINER, "v100").mean == pytest.approx(0.01)
    assert profile.task_time(Role.TRAINER, "t4").mean == pytest.approx(0.02)
    assert profile.task_time(Role.RING, "t4").mean == 0.0
    with pytest.raises(SpecError, match=r"no sampler time for machine class 't4', only for .*v100"):
        profile.task_time(Role.SAMPLER, "t4")
    with pytest.raises(SpecError, match=r"add task_times.ps.t4, or .default"):
        profile.task_time(Role.SERVER, "t4")


@pytest.mark.parametrize("locality", [0.0, 0.3, 1.0])
def test_synthetic_traffic(locality: float) -> None:
    matrix = StoreTraffic(bytes_per_seed=900.0, locality=locality).bytes_per_seed_matrix(3)
    np.testing.assert_allclose(matrix.sum(axis=1), 900.0)
    np.testing.assert_allclose(np.diag(matrix), 900 * locality + 300 * (1 - locality))


def test_measured_traffic() -> None:
    traffic = StoreTraffic(matrix=((1.0, 2.0), (3.0, 4.0)))
    np.testing.assert_array_equal(traffic.bytes_per_seed_matrix(2), [[1, 2], [3, 4]])
    with pytest.raises(SpecError, match="measured 2 graph partitions, the cluster has 3 machines"):
        traffic.bytes_per_seed_matrix(3)


@pytest.mark.parametrize(
    "fields",
    [
        {"matrix": [[1, 2]]},
        {"matrix": [[1, 2], [3]]},
        {"matrix": [[1]], "bytes_per_seed": 1},
        {"matrix": [[1]], "locality": 0.5},
        {"locality": 1.5},
        {"bytes_per_seed": -1},
    ],
)
def test_impossible_traffic(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StoreTraffic.model_validate(fields)


def test_what_nobody_measured_is_not_written() -> None:
    # Fingerprints of profiles without confidences stay what they were before there were any.
    written = profile_of(store={"default": "1ms"}).model_dump(mode="json")
    assert "model_bytes" not in written
    assert "relative_errors" not in written["store_traffic"]
    assert set(written["task_times"]["store"]["default"]) == {"mean", "variation", "num_samples"}
    measured = TaskTime(mean=0.5, relative_error=0.02)
    assert measured.model_dump(mode="json")["relative_error"] == 0.02


def test_errors_have_the_shape_of_the_matrix() -> None:
    matrix = ((1.0, 2.0), (3.0, 4.0))
    errors = ((0.1, 0.2), (0.3, 1.0))
    assert StoreTraffic(matrix=matrix, relative_errors=errors).relative_errors == errors
    with pytest.raises(SpecError, match="and matrix differ in shape"):
        StoreTraffic(matrix=matrix, relative_errors=((0.1, 0.2),))


@pytest.mark.parametrize(
    ("per_sampler", "per_trainer", "expected"),
    [(0, None, (100, 200)), (50, None, (50, 100)), (50, 400, (50, 400)), (0, 400, (100, 400))],
)
def test_times_hold_for_so_many_seeds(
    per_sampler: float, per_trainer: float | None, expected: tuple[float, float]
) -> None:
    seeds = {"seeds_per_sampler": per_sampler, "seeds_per_trainer": per_trainer}
    profile = profile_of().model_copy(update=seeds)
    job = Job(trainers=1, batch_size=200, samplers_per_trainer=2)
    assert profile.nominal_seeds(job) == expected
    assert profile.seed_scale(Role.SAMPLER, job) == 100 / expected[0]
    assert profile.seed_scale(Role.TRAINER, job) == 200 / expected[1]
    assert profile.seed_scale(Role.STORE, job) == 1.0


def test_a_profile_of_version_0_1_keeps_its_fingerprint() -> None:
    profile = Profile.model_validate(
        {
            "seeds_per_sampler": 1000,
            "task_times": {
                "store": {"default": "28ms"},
                "sampler": {"default": "29ms"},
                "trainer": {"default": "37ms"},
            },
            "store_traffic": {"bytes_per_seed": 93480},
            "batch_traffic": {"bytes_per_seed": 93480},
        }
    )
    # Plans have it, and would be refused otherwise.
    assert profile.fingerprint() == "d6b6155907707924"
