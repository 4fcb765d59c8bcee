"""Successive halving."""

from __future__ import annotations

from headrace.policies.trials.halving import Halving

RULE = Halving(factor=3, first=1)


def test_rungs_grow_by_the_factor() -> None:
    assert RULE.rungs(0) == []
    assert RULE.rungs(10) == [1, 3, 9]
    assert Halving(2, 4).rungs(16) == [4, 8, 16]


def test_the_first_trials_continue() -> None:
    assert RULE.stops(0, {0: [0.1], 1: [0.9]}) is None


def test_only_the_best_third_continues() -> None:
    values = {0: [0.1], 1: [0.5], 2: [0.9]}
    assert [RULE.stops(number, values) for number in values] == [1, 1, None]


def test_a_trial_is_compared_at_the_rung_that_both_have_reached() -> None:
    values = {0: [0.9, 0.9, 0.2], 1: [0.8, 0.8, 0.3], 2: [0.7, 0.7, 0.4], 3: [1.0]}
    assert RULE.stops(3, values) is None
    assert RULE.stops(0, {n: v for n, v in values.items() if n < 3}) == 3


def test_equal_trials_continue() -> None:
    assert [RULE.stops(n, {0: [0.5], 1: [0.5], 2: [0.5]}) for n in range(3)] == [None] * 3
