"""Bytes per seed from samplers that mix parts, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.costs.step_time import student
from headrace.profiling.samples import NOTHING_KNOWN, relative_error, variation_of
from headrace.profiling.volumes import bytes_per_seed

B = np.array([[9.0, 2.0], [1.0, 7.0]])


def test_parts_that_are_measured_apart_are_exact() -> None:
    seeds = np.array([[10.0, 0.0], [0.0, 20.0]])
    found, error = bytes_per_seed(seeds, seeds @ B, np.full((2, 2), 0.1))
    assert found == pytest.approx(B, rel=1e-6)
    assert error[0, 0] == pytest.approx(1.96 * 0.01 / 9, rel=1e-3)


def test_mixes_are_taken_apart() -> None:
    seeds = np.array([[10.0, 5.0], [4.0, 20.0], [7.0, 7.0]])
    found, error = bytes_per_seed(seeds, seeds @ B, np.full((3, 2), 1e-9))
    assert found == pytest.approx(B, rel=1e-6)
    assert error.max() < 1e-6


def test_what_is_on_the_own_machine_is_told_by_others() -> None:
    seeds = np.array([[10.0, 5.0], [4.0, 20.0], [7.0, 7.0]])
    means = seeds @ B
    means[0, 0] = np.nan
    assert bytes_per_seed(seeds, means, np.zeros((3, 2)))[0] == pytest.approx(B, rel=1e-6)


def test_equal_mixes_say_only_the_mean() -> None:
    seeds = np.full((3, 2), 5.0)
    found, error = bytes_per_seed(seeds, seeds @ B, np.zeros((3, 2)))
    assert found == pytest.approx(np.array([[5.0, 4.5], [5.0, 4.5]]), rel=1e-4)
    assert (error == NOTHING_KNOWN).all()


def test_nothing_is_negative() -> None:
    seeds = np.array([[10.0, 1.0], [10.0, 2.0]])
    found, _ = bytes_per_seed(seeds, np.array([[100.0], [90.0]]), np.ones((2, 1)))
    assert found.min() >= 0
    assert (seeds @ found)[:, 0] == pytest.approx([95, 95], rel=0.05)


def test_a_store_nobody_heard_of_gets_the_mean() -> None:
    seeds = np.array([[10.0, 0.0], [0.0, 10.0]])
    means = np.array([[90.0, np.nan], [10.0, np.nan]])
    found, error = bytes_per_seed(seeds, means, np.zeros((2, 2)))
    assert found[:, 1] == pytest.approx([5, 5])
    assert (error[:, 1] == NOTHING_KNOWN).all()


def test_intervals() -> None:
    # Tables of Student's distribution.
    assert student(4) == pytest.approx(2.776, rel=0.01)
    assert student(30) == pytest.approx(2.042, rel=1e-3)
    assert relative_error(np.array([3.0])) == NOTHING_KNOWN
    assert relative_error(np.array([3.0, 3.0, 3.0])) == 0
    assert relative_error(np.array([1.0, 3.0])) > 2
    assert not variation_of(np.array([3.0, 3.0])).quantiles
    assert variation_of(np.array([1.0, 3.0])).quantiles == (0.75, 1.25)


def test_what_is_not_determined_is_as_expected() -> None:
    seeds = np.full((3, 2), 5.0)
    found, error = bytes_per_seed(seeds, 2 * seeds @ B, np.zeros((3, 2)), expected=B)
    assert found == pytest.approx(2 * B, rel=1e-4)
    assert (error == NOTHING_KNOWN).all()
    # Measured entries do not depend on it.
    seeds = np.array([[10.0, 0.0], [0.0, 20.0]])
    found, _ = bytes_per_seed(seeds, seeds @ B, np.full((2, 2), 0.1), expected=B[::-1])
    assert found == pytest.approx(B, rel=1e-6)
