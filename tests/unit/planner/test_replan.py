"""The same job on the machines that are left."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.cluster import Cluster
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Job, Role, Sync
from headrace.core.plan import Plan
from headrace.core.profile import Problem, Profile, StoreTraffic, TaskTime
from headrace.planner.methods import anneal
from headrace.planner.planner import make_plan
from headrace.planner.replan import replan, replan_measured
from headrace.profiling.by_machine import told_apart
from tests.unit.planner.small import JOB, PROFILE, cluster_of, profile_of

CLUSTER = cluster_of(1.0, 1.0, 0.25, 1.0)
NAMES = [host.name for host in CLUSTER.hosts]
# Columns differ, so that a sum over the wrong axis is seen.
MATRIX = np.arange(16.0).reshape(4, 4)
MEASURED = PROFILE.model_copy(
    update={"store_traffic": StoreTraffic(matrix=tuple(map(tuple, MATRIX.tolist())))}
)


def plan_of(job: Job = JOB, profile: Profile = PROFILE) -> Plan:
    return make_plan(Problem(CLUSTER, job, profile), method="colocate", policy="maxmin")


@cache
def usual() -> Plan:
    return plan_of()


def test_with_all_machines_nothing_changes() -> None:
    plan = plan_of()
    assert replan(plan, NAMES) is plan


def test_a_lost_machine_leaves_its_part_to_another() -> None:
    plan = plan_of()
    again = replan(plan, {"m0", "m1", "m3"})
    assert [host.name for host in again.cluster.hosts] == ["m0", "m1", "m3"]
    assert again.job == plan.job
    assert again.parts == (0, 1, 0, 2)
    assert Plan.model_validate_json(again.model_dump_json()) == again
    assert again.seeds.sum(axis=1) == pytest.approx(JOB.batch_size / 2)
    assert again.seeds[0] == pytest.approx(np.array([25.0, 12.5, 12.5]))


def test_fewer_trainers_take_the_same_global_batch() -> None:
    # A machine has two GPUs: with three of them left all trainers fit, with fewer they do not.
    job = JOB.model_copy(update={"trainers": 6, "samplers_per_trainer": 1, "sync": Sync.RING})
    plan = plan_of(job)
    assert replan(plan, {"m0", "m1", "m3"}).job.trainers == 6
    two = replan(plan, {"m0", "m3"}).job
    assert (two.trainers, two.batch_size, two.samplers_per_trainer) == (4, 150, 1)
    one = replan(plan, {"m2"}).job
    assert (one.trainers, one.batch_size) == (2, 300)


def test_fewer_servers_if_they_do_not_fit() -> None:
    job = JOB.model_copy(
        update={
            "trainers": 1,
            "parameter_servers": 4,
            "demands": {**JOB.demands, Role.SERVER: {"gpu": 1}},
        }
    )
    plan = plan_of(job)
    again = replan(plan, {"m1"})
    assert (again.job.trainers, again.job.parameter_servers) == (1, 1)
    assert again.job.sync is Sync.PS


def test_what_does_not_fit_at_all_is_said() -> None:
    plan = plan_of(JOB.model_copy(update={"demands": {Role.TRAINER: {"cpu": 6}}}))
    small = plan.cluster.hosts[0].model_copy(update={"resources": {"cpu": 1}})
    cluster = plan.cluster.model_copy(update={"machines": (small, *plan.cluster.hosts[1:])})
    changed = plan.model_copy(update={"cluster": cluster})
    with pytest.raises(InfeasibleError, match="cpu"):
        replan(changed, {"m0"})
    with pytest.raises(SpecError, match="no machine"):
        replan(plan, {"elsewhere"})


def test_measured_traffic_is_added_up_by_machine() -> None:
    again = replan(plan_of(profile=MEASURED), {"m0", "m1", "m3"})
    assert again.parts == (0, 1, 0, 2)
    folded = again.profile.store_traffic.bytes_per_seed_matrix(3)
    expected = [
        (MATRIX[0] + MATRIX[2]) / 2,
        MATRIX[1],
        MATRIX[3],
    ]
    by_machine = [[row[0] + row[2], row[1], row[3]] for row in expected]
    np.testing.assert_allclose(folded, by_machine)


@given(st.frozensets(st.sampled_from(NAMES), min_size=1), st.frozensets(st.sampled_from(NAMES)))
def test_parts_are_spread_and_stay_where_they_can(
    first: frozenset[str], second: frozenset[str]
) -> None:
    plan = usual()
    again = replan(plan, first)
    there = [host.name for host in again.cluster.hosts]
    assert set(there) == first
    homes = [there[machine] for machine in again.part_machines]
    assert [home for home, name in zip(homes, NAMES, strict=True) if name in first] == there
    counts = [homes.count(name) for name in there]
    assert max(counts) - min(counts) <= 1
    if first & second:
        # A plan that was made for a loss can lose a machine itself.
        third = replan(again, first & second)
        assert len(third.part_machines) == 4


def test_a_slower_card_is_planned_around() -> None:
    plan = make_plan(Problem(cluster_of(1.0, 1.0, 1.0, 1.0), JOB, PROFILE), policy="maxmin")
    busy = plan.placement.trainers[0]
    # Its store sends as fast as before, but its samplers get less.
    slow = Cluster(
        machines=tuple(
            host.model_copy(update={"nic_in": 0.3e9}) if host.name == busy else host
            for host in plan.cluster.hosts
        )
    )
    found = replan_measured(plan, slow, PROFILE)
    assert found.time_s < 0.9 * found.before_s
    assert found.plan.cluster == slow
    assert (found.plan.job, found.plan.policy) == (plan.job, plan.policy)
    assert (found.plan.seeds == plan.seeds).all()
    assert busy not in found.plan.placement.samplers
    assert Plan.model_validate_json(found.plan.model_dump_json()) == found.plan
    # What was found is found again, and nothing is better.
    again = replan_measured(found.plan, slow, PROFILE)
    assert again.plan.placement == found.plan.placement
    assert again.time_s == again.before_s == found.time_s


def test_a_slower_cpu_is_planned_around() -> None:
    profile = profile_of(bytes_per_seed=1e3)
    plan = make_plan(Problem(cluster_of(1.0, 1.0, 1.0), JOB, profile), policy="maxmin")
    slow = plan.placement.trainers[0]
    cluster = told_apart(plan.cluster)
    trainers = {host.name: TaskTime(mean=0.01) for host in cluster.hosts}
    times = {
        **{
            role: {"default": time}
            for role, by_kind in profile.task_times.items()
            for time in by_kind.values()
        },
        Role.TRAINER: trainers | {slow: TaskTime(mean=0.05)},
    }
    found = replan_measured(plan, cluster, profile.model_copy(update={"task_times": times}))
    assert slow not in found.plan.placement.trainers
    assert found.time_s < 0.7 * found.before_s


def test_seeds_stay_with_their_samplers() -> None:
    profile = profile_of(locality=0.8)
    plan = make_plan(Problem(CLUSTER, JOB, profile), policy="maxmin", seed_mix="local-first")
    found = replan_measured(plan, cluster_of(1.0, 0.1, 0.25, 1.0), profile).plan
    assert found.seed_mix == plan.seed_mix
    assert (found.seeds == plan.seeds).all()


def test_a_plan_for_fewer_machines_can_change_again() -> None:
    plan = replan(plan_of(profile=MEASURED), {"m0", "m1", "m3"})
    found = replan_measured(plan, cluster_of(1.0, 0.2, 1.0), plan.profile).plan
    assert found.parts == plan.parts
    assert (found.seeds == plan.seeds).all()


def test_noise_between_machines_does_not_multiply_searches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make_plan(Problem(cluster_of(*[1.0] * 8), JOB, PROFILE), policy="maxmin")
    cluster = told_apart(plan.cluster)
    times = {
        role: {
            host.name: TaskTime(mean=0.01 * (1 + 0.001 * number))
            for number, host in enumerate(cluster.hosts)
        }
        for role in PROFILE.task_times
    }
    searches = []
    shortlist = anneal.shortlist

    def counted(problem: Problem, **options: Any) -> Any:
        searches.append(problem)
        return shortlist(problem, **options)

    monkeypatch.setattr(anneal, "shortlist", counted)
    replan_measured(plan, cluster, PROFILE.model_copy(update={"task_times": times}))
    assert len(searches) == 1
