"""Trials in virtual time."""

from __future__ import annotations

import pytest

from headrace.policies.trials import TRIAL_ORDERS, Room, TrialLoad
from headrace.simulator.trial_queue import simulate_queue


def test_two_side_by_side_share_one_core() -> None:
    trials = [TrialLoad(0, time_s=1.0), TrialLoad(1, time_s=2.0)]
    outcome = simulate_queue(trials, TRIAL_ORDERS["shortest"], Room(2), num_cores=1.0)
    assert outcome.end_s == pytest.approx({0: 2.0, 1: 3.0})
    assert outcome.makespan_s == pytest.approx(3.0)
    assert outcome.mean_completion_s == pytest.approx(2.5)
    assert outcome.mean_queueing_s == 0.0


def test_shortest_first_completes_earlier_than_first_in_first_out() -> None:
    trials = [TrialLoad(0, time_s=10.0), TrialLoad(1, time_s=1.0), TrialLoad(2, time_s=1.0)]
    ours = simulate_queue(trials, TRIAL_ORDERS["shortest"], Room(1))
    theirs = simulate_queue(trials, TRIAL_ORDERS["base"], Room(1))
    assert ours.mean_completion_s == pytest.approx((1 + 2 + 12) / 3)
    assert theirs.mean_completion_s == pytest.approx((10 + 11 + 12) / 3)
    assert ours.makespan_s == theirs.makespan_s


def test_no_trials_take_no_time() -> None:
    assert simulate_queue([], TRIAL_ORDERS["base"], Room(2)).makespan_s == 0.0
