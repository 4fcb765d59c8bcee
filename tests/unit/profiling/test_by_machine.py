"""Machines of one class, of which one has changed."""

from __future__ import annotations

from headrace.core.job import Role
from headrace.core.profile import Problem, Profile, TaskTime
from headrace.planner.planner import make_plan
from headrace.profiling.by_machine import filled_in, told_apart
from tests.unit.planner.small import CLUSTER, JOB, PROBLEM, PROFILE

RING = {"default": TaskTime(mean=0.002)}
PLANNED = PROFILE.model_copy(
    update={
        "source": "measured",
        "seeds_per_sampler": 100.0,
        "task_times": {**PROFILE.task_times, Role.RING: RING},
    }
)


def measured(**times: float) -> Profile:
    """Samplers and steps of the ring on some machines."""
    seen = {name: TaskTime(mean=time_s) for name, time_s in times.items()}
    return PROFILE.model_copy(
        update={
            "source": "measured",
            "task_times": {
                Role.SAMPLER: seen | {"default": TaskTime(mean=9.0)},
                Role.RING: {name: TaskTime(mean=0.1) for name in times} | RING,
            },
        }
    )


def test_every_machine_is_of_its_own_class() -> None:
    cluster = told_apart(CLUSTER)
    assert [host.kind for host in cluster.hosts] == ["m0", "m1", "m2"]
    assert [host.nic_in for host in cluster.hosts] == [host.nic_in for host in CLUSTER.hosts]


def test_what_was_not_seen_is_as_planned() -> None:
    plan = make_plan(Problem(CLUSTER, JOB, PLANNED), method="colocate", policy="maxmin")
    found = filled_in(measured(m0=0.5, m1=0.01), plan)
    assert found.task_time(Role.SAMPLER, "m0").mean == 0.5
    assert found.task_time(Role.SAMPLER, "m1").mean == 0.01
    # Planned for 100 seeds per sampler, of which the job has 50.
    assert found.task_time(Role.SAMPLER, "m2").mean == 0.005
    # A step of the ring only waits.
    assert found.task_time(Role.RING, "m0").mean == 0.002


def test_what_nobody_measured_before_is_not_taken_for_known() -> None:
    plan = make_plan(PROBLEM, method="colocate", policy="maxmin")
    seen = measured(m0=0.5)
    assert filled_in(seen, plan) is seen
