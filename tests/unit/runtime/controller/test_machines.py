"""A run goes on after faults, with nothing that runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.profile import Problem
from headrace.planner.planner import make_plan
from headrace.planner.replan import replan
from headrace.policies.lifecycle.events import Ended, Lost, Outcome, Task
from headrace.policies.recovery.deciding import Recovery
from headrace.policies.recovery.events import Limits
from headrace.runtime.cluster.head import HeadLostError
from headrace.runtime.controller.failure_handling import FailureHandler
from headrace.runtime.controller.machines import AvailableMachines, run_attempts
from headrace.runtime.controller.signals import Interruption
from tests.unit.planner.small import JOB, PROFILE, cluster_of

TASKS = (Task("trainer0", Role.TRAINER, "m1"),)
DONE = Outcome(is_success=True)
KILLED = Outcome(problem="killed", fault=Ended("trainer0", -9, "was ended by SIGKILL"))
M1_LOST = Outcome(problem="m1 is lost", fault=Lost("m1", "gone"))


@pytest.fixture(scope="module")
def plan() -> Plan:
    problem = Problem(cluster_of(1.0, 1.0, 1.0), JOB, PROFILE)
    return make_plan(problem, method="colocate", policy="maxmin")


class Ray:
    """Nodes of a made-up cluster."""

    def __init__(self) -> None:
        self.ids = {name: f"{name}-first" for name in ("m0", "m1", "m2")}

    def nodes(self, timeout_s: float = 0.0) -> list[Mapping[str, Any]]:
        return [
            {
                "NodeID": node_id,
                "Alive": True,
                "Labels": {"host": name},
                "NodeManagerAddress": name,
                "Resources": {"CPU": 6.0, "GPU": 2.0},
            }
            for name, node_id in self.ids.items()
        ]


def drive(
    plan: Plan, outcomes: list[Outcome], limits: Limits | None = None, ray: Ray | None = None
) -> tuple[Outcome, list[Plan], AvailableMachines]:
    machines = AvailableMachines(plan, (ray or Ray()).nodes)
    names = frozenset(host.name for host in plan.cluster.hosts)
    mender = FailureHandler(Recovery(names, limits or Limits()), lambda state, decision: None)
    plans: list[Plan] = []

    def attempt(each: Plan) -> tuple[Outcome, tuple[Task, ...]]:
        machines.nodes(each)
        plans.append(each)
        return outcomes[len(plans) - 1], TASKS

    return (
        run_attempts(partial(replan, plan), mender, machines, attempt, Interruption()),
        plans,
        machines,
    )


def test_a_run_without_faults_has_one_attempt(plan: Plan) -> None:
    outcome, plans, _ = drive(plan, [DONE])
    assert outcome == DONE
    assert plans == [plan]


def test_a_killed_trainer_is_tried_again_with_the_same_plan(plan: Plan) -> None:
    outcome, plans, _ = drive(plan, [KILLED, KILLED, DONE])
    assert outcome == DONE
    assert plans == [plan] * 3


def test_a_lost_machine_is_planned_without(plan: Plan) -> None:
    ray = Ray()
    outcome, plans, machines = drive(plan, [M1_LOST, DONE], ray=ray)
    assert outcome == DONE
    assert [host.name for host in plans[1].cluster.hosts] == ["m0", "m2"]
    assert plans[1].parts == (0, 0, 1)
    # Ray may take it for alive for a while; only another node is a machine that is back.
    assert machines.there() == {"m0", "m2"}
    ray.ids["m1"] = "m1-second"
    assert machines.there() == {"m0", "m1", "m2"}


def test_who_went_meanwhile_is_done_without_too(plan: Plan) -> None:
    ray = Ray()
    del ray.ids["m2"]
    machines = AvailableMachines(plan, ray.nodes)
    mender = FailureHandler(Recovery(frozenset({"m0", "m1", "m2"})), lambda state, decision: None)
    plans: list[Plan] = []

    def attempt(each: Plan) -> tuple[Outcome, tuple[Task, ...]]:
        plans.append(each)
        return (M1_LOST if len(plans) == 1 else DONE), TASKS

    assert run_attempts(partial(replan, plan), mender, machines, attempt, Interruption()) == DONE
    assert [host.name for host in plans[1].cluster.hosts] == ["m0"]


def test_what_is_given_up_says_why(plan: Plan) -> None:
    outcome, plans, _ = drive(plan, [KILLED] * 9)
    assert len(plans) == 6
    assert outcome.problem == "killed (there were 5 resumes since the last checkpoint)"
    outcome, plans, _ = drive(plan, [KILLED], Limits.of(0))
    assert outcome == KILLED
    assert len(plans) == 1


def test_what_is_no_fault_of_a_task_is_not_tried_again(plan: Plan) -> None:
    failed = Outcome(problem="no room", remedy="make some")
    assert drive(plan, [failed])[0] == failed


def test_an_interrupt_is_not_mended(plan: Plan) -> None:
    interrupted = Interruption()
    interrupted.set()
    machines = AvailableMachines(plan, Ray().nodes)
    mender = FailureHandler(Recovery(frozenset({"m0", "m1", "m2"})), lambda state, decision: None)
    outcome = run_attempts(
        partial(replan, plan), mender, machines, lambda each: (KILLED, TASKS), interrupted
    )
    assert outcome == Outcome(is_interrupted=True)


def test_without_the_head_nothing_is_resumed(plan: Plan) -> None:
    class Headless(Ray):
        is_lost = False

        def nodes(self, timeout_s: float = 0.0) -> list[Mapping[str, Any]]:
            if self.is_lost:
                raise HeadLostError
            return super().nodes()

    ray = Headless()
    machines = AvailableMachines(plan, ray.nodes)
    state = Recovery(frozenset(host.name for host in plan.cluster.hosts))
    handler = FailureHandler(state, lambda state, decision: None)

    def attempt(plan: Plan) -> tuple[Outcome, tuple[Task, ...]]:
        ray.is_lost = True
        return KILLED, TASKS

    outcome = run_attempts(lambda names: plan, handler, machines, attempt, Interruption())
    assert outcome.problem == (
        "killed, and the run cannot be resumed: the head of the Ray cluster does not answer"
    )
