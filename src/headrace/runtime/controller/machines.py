"""Runs a plan in one or more attempts; after a fault it resumes on the remaining machines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.core.errors import HeadraceError
from headrace.core.plan import Plan
from headrace.policies.lifecycle.events import Outcome, Task
from headrace.policies.recovery.events import GiveUp, Resume, Settled
from headrace.runtime.cluster.head import CALL_S
from headrace.runtime.cluster.nodes import Node, find_nodes, nodes_there
from headrace.runtime.controller.failure_handling import FailureHandler
from headrace.runtime.controller.signals import Interruption

Attempt = Callable[[Plan], tuple[Outcome, tuple[Task, ...]]]
"""Runs a plan once, from the newest checkpoint; returns the outcome and the tasks."""

PlanFor = Callable[[frozenset[str]], Plan]
"""Returns the plan for the machines with these names."""


def run_attempts(
    plan_for: PlanFor,
    handler: FailureHandler,
    machines: AvailableMachines,
    attempt: Attempt,
    interrupted: Interruption,
) -> Outcome:
    """Run a plan until it succeeds, is interrupted or cannot be resumed.

    Raises:
        HeadraceError: The first attempt cannot start.
    """
    outcome, tasks = attempt(plan_for(handler.state.machines))
    while True:
        if outcome.is_success or outcome.is_interrupted:
            return outcome
        if interrupted.is_set():
            return Outcome(is_interrupted=True)
        decision = handler.after(outcome, tasks)
        if not isinstance(decision, Resume):
            return _given_up(outcome, decision)
        machines.forget(decision.without)
        try:
            decision_now = handler.handle(Settled(machines.there()))
            if isinstance(decision_now, GiveUp):
                return _given_up(outcome, decision_now)
            outcome, tasks = attempt(plan_for(handler.state.machines))
        except HeadraceError as error:
            problem = f"{outcome.problem}, and the run cannot be resumed: {error.problem}"
            return Outcome(problem=problem, remedy=error.remedy)


def _given_up(outcome: Outcome, decision: GiveUp | None) -> Outcome:
    because = "" if decision is None else decision.because
    return replace(outcome, problem=f"{outcome.problem} ({because})") if because else outcome


class AvailableMachines:
    """Tracks which machines of a plan are available.

    A lost machine counts as available again only with a new Ray node: Ray detects a dead node late,
    and does not detect a partitioned network.

    Args:
        known: Returns all Ray nodes, given a timeout in seconds.
    """

    def __init__(self, plan: Plan, known: Callable[[float], Sequence[Mapping[str, Any]]]) -> None:
        self._plan, self._known = plan, known
        self._used: dict[str, str] = {}
        self._lost: set[str] = set()

    def there(self, timeout_s: float = CALL_S) -> frozenset[str]:
        """Names of the available machines; raises `HeadLostError`."""
        found = nodes_there(self._plan.cluster, self._alive(timeout_s))
        return frozenset(node.machine for node in found)

    def nodes(self, plan: Plan) -> tuple[Node, ...]:
        """Ray nodes of a plan's machines, recorded as used; raises SpecError if one is missing."""
        nodes = find_nodes(plan.cluster, self._alive(CALL_S))
        self._used = {node.machine: node.node_id for node in nodes}
        return nodes

    def forget(self, names: Collection[str]) -> None:
        """Treat machines as lost, whatever Ray reports."""
        self._lost |= {self._used[name] for name in names if name in self._used}

    def _alive(self, timeout_s: float) -> list[Mapping[str, Any]]:
        return [node for node in self._known(timeout_s) if node["NodeID"] not in self._lost]
