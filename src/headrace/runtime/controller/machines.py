"""A run in one or more attempts: after a fault it goes on, on the machines that are left."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.core.plan import Plan
from headrace.policies.lifecycle.events import Outcome, Task
from headrace.policies.recovery.events import GiveUp, Resume, Settled
from headrace.runtime.cluster.nodes import Node, find_nodes, nodes_there
from headrace.runtime.controller.failure_handling import FailureHandler
from headrace.runtime.controller.signals import Interruption

Attempt = Callable[[Plan], tuple[Outcome, tuple[Task, ...]]]
"""Runs a plan once, from the newest checkpoint; how it ended, and with which tasks."""

PlanFor = Callable[[frozenset[str]], Plan]
"""The plan for machines of these names."""


def run_attempts(
    plan_for: PlanFor,
    mender: FailureHandler,
    machines: AvailableMachines,
    attempt: Attempt,
    interrupted: Interruption,
) -> Outcome:
    """Run a plan until it is done, or nothing more can be done about it.

    Args:
        plan_for: Plans for the machines that are left.
        mender: Decides what to do about faults.
        machines: Know who is there.
        attempt: Runs a plan once.
        interrupted: Set when somebody wants the run to end.

    Raises:
        HeadraceError: The first attempt cannot begin.
    """
    outcome, tasks = attempt(plan_for(mender.state.machines))
    while True:
        if outcome.is_success or outcome.is_interrupted:
            return outcome
        if interrupted.is_set():
            return Outcome(is_interrupted=True)
        decision = mender.after(outcome, tasks)
        if not isinstance(decision, Resume):
            return _given_up(outcome, decision)
        machines.forget(decision.without)
        decision_now = mender.take(Settled(machines.there()))
        if isinstance(decision_now, GiveUp):
            return _given_up(outcome, decision_now)
        try:
            outcome, tasks = attempt(plan_for(mender.state.machines))
        except HeadraceError as error:
            problem = f"{outcome.problem}, and the run cannot go on: {error.problem}"
            return Outcome(problem=problem, remedy=error.remedy)


def _given_up(outcome: Outcome, decision: GiveUp | None) -> Outcome:
    because = "" if decision is None else decision.because
    return replace(outcome, problem=f"{outcome.problem} ({because})") if because else outcome


class AvailableMachines:
    """Who of a plan's machines is there.

    A machine that was lost counts as there again only with another Ray node: Ray takes a while to
    notice that one is gone, and never notices that others do not reach it.

    Args:
        plan: The plan that the run began with.
        known: What `ray.nodes()` says, each time it is asked.
    """

    def __init__(self, plan: Plan, known: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._plan, self._known = plan, known
        self._used: dict[str, str] = {}
        self._lost: set[str] = set()

    def there(self) -> frozenset[str]:
        """Names of those that are."""
        found = nodes_there(self._plan.cluster, self._alive())
        return frozenset(node.machine for node in found)

    def nodes(self, plan: Plan) -> tuple[Node, ...]:
        """Ray nodes of a plan's machines, which are going to be used.

        Raises:
            SpecError: One is not there.
        """
        nodes = find_nodes(plan.cluster, self._alive())
        self._used = {node.machine: node.node_id for node in nodes}
        return nodes

    def forget(self, names: Collection[str]) -> None:
        """Take it that machines are gone, whatever Ray says."""
        self._lost |= {self._used[name] for name in names if name in self._used}

    def _alive(self) -> list[Mapping[str, Any]]:
        return [node for node in self._known() if node["NodeID"] not in self._lost]
