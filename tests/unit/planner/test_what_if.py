from __future__ import annotations

import pytest

from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.profile import Problem, TaskTime
from headrace.planner.planner import make_plan
from headrace.planner.what_if import rehearse_changes
from tests.unit.planner.small import CLUSTER, JOB, PROBLEM, PROFILE


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(PROBLEM, policy="maxmin")


def test_each_change_is_rehearsed_and_the_slow_card_helps_most(plan: Plan) -> None:
    steps: list[str] = []
    time_s, tried = rehearse_changes(plan, plan.profile, 30, on_step=steps.append)
    by_name = {change.change: change for change in tried}
    savings = [round(change.saving, 2) for change in tried]
    assert savings == sorted(savings, reverse=True)
    assert set(by_name) <= set(steps)
    slow = by_name["doubling the NIC of m2"]
    assert slow.saving > 0.2
    assert slow.time_s == pytest.approx((1 - slow.saving) * time_s)
    assert by_name["half the bytes per seed"].saving > 0.2
    assert abs(by_name["trainers that compute twice as fast"].saving) < 0.1
    assert "flow policy oes instead of maxmin" in by_name
    assert not any("by maxmin" in name for name in by_name)
    assert "a window of 4 instead of 2" in by_name


def test_savings_are_per_seed(plan: Plan) -> None:
    time_s, tried = rehearse_changes(plan, plan.profile, 30)
    fewer = next(change for change in tried if change.change.startswith("2 trainers"))
    assert fewer.saving == pytest.approx(1 - 3 / 2 * fewer.time_s / time_s)


def test_what_does_not_fit_is_no_advice(plan: Plan) -> None:
    _, tried = rehearse_changes(plan, plan.profile, 30)
    # Each of them would need two cores more than there are.
    assert not any("3 samplers per trainer" in change.change for change in tried)


@pytest.mark.slow
def test_parts_follow_network_cards_where_they_do_not_yet() -> None:
    # Two trainers do not need the slow machine, which only has its part of the graph.
    job = JOB.model_copy(update={"trainers": 2})
    few = make_plan(Problem(CLUSTER, job, PROFILE), method="exact", policy="maxmin")
    assert "m2" not in few.placement.trainers
    name = "larger graph partitions on machines with faster NICs"
    _, equal = rehearse_changes(few, few.profile, 30, part_shares=(1 / 3, 1 / 3, 1 / 3))
    assert next(change for change in equal if change.change == name).saving > 0.1
    _, fitting = rehearse_changes(few, few.profile, 30, part_shares=(4 / 9, 4 / 9, 1 / 9))
    assert name not in {change.change for change in fitting}
    _, unknown = rehearse_changes(few, few.profile, 30)
    assert name not in {change.change for change in unknown}


@pytest.mark.parametrize("says_per_trainer", [True, False])
def test_more_samplers_do_not_shorten_what_a_trainer_computes(says_per_trainer: bool) -> None:
    times = {**PROFILE.task_times, Role.TRAINER: {"default": TaskTime(mean=0.5)}}
    figures = {"task_times": times, "seeds_per_sampler": 100.0}
    if says_per_trainer:
        figures["seeds_per_trainer"] = 100.0
    job = JOB.model_copy(update={"samplers_per_trainer": 1})
    plan = make_plan(Problem(CLUSTER, job, PROFILE.model_copy(update=figures)), policy="maxmin")
    time_s, tried = rehearse_changes(plan, plan.profile, 30)
    assert time_s == pytest.approx(0.5, rel=0.1)
    more = next(change for change in tried if change.change.startswith("2 samplers per trainer"))
    assert abs(more.saving) < 0.05
