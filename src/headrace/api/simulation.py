"""Rehearse a job: place it, run it in virtual time, say what was found."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from headrace.api.defaults import default_profile
from headrace.api.files import find_plan, load_placement
from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.job import UNLIMITED_WINDOW, Job
from headrace.core.placement import Placement, PlacementFile
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.core.tasks import ROLES, TaskGraph
from headrace.core.trace import Trace
from headrace.observability.nics import NicSummary, nic_summary
from headrace.planner import PLACEMENT_METHODS, place
from headrace.policies.flow import FLOW_POLICIES
from headrace.simulator import Instance, Outcome, build_instance, trace_of
from headrace.simulator import simulate as rehearse

AnyPlacement = Placement | Plan | str | os.PathLike[str]
"""A placement, a plan, the name of a placement method, or the path of a placement or plan file."""

DEFAULT_POLICY = "priority"
"""The flow policy where neither the user nor a plan names one."""

AnyWindow = int | Literal["unlimited"] | None
"""A run-ahead window K >= 1, `unlimited`, or none to take the job's."""

_SMALL = 10_000_000
"""Completions x task pairs that the general kernel, quick to compile, settles in half a second."""


@dataclass(frozen=True)
class Simulation:
    """A rehearsed job and what was found.

    Attributes:
        cluster: The machines.
        job: The job as asked for; `instance` holds the iterations and window that were rehearsed.
        profile: Its times and volumes.
        placement: Where its tasks ran.
        placement_name: The method or file the placement came from, or `given`.
        policy: Name of the flow policy.
        instance: What the simulator was given.
        graph: The job's tasks and edges.
        outcome: What the simulator found.
        iteration_time_s: What an iteration adds to a long job: (T(N) - T(H)) / (N - H), where T is
            the makespan, N the number of iterations and H half of it, rounded down. T(H) comes from
            a rehearsal of its own; the ends of iterations within one rehearsal would mislead where
            work queues up and drains at the end.
    """

    cluster: Cluster
    job: Job
    profile: Profile
    placement: Placement
    placement_name: str
    policy: str
    instance: Instance
    graph: TaskGraph
    planned: bool
    """Whether this rehearses a plan."""
    outcome: Outcome
    iteration_time_s: float

    @property
    def makespan_s(self) -> float:
        """When the last task of the last iteration ends."""
        return self.outcome.makespan_s

    @property
    def mean_iteration_time_s(self) -> float:
        """Makespan per iteration, the filling of the pipeline included."""
        return self.makespan_s / self.instance.num_iterations

    @property
    def window(self) -> int | str:
        """The run-ahead window K that was rehearsed, or `unlimited`."""
        return self.instance.window or "unlimited"

    @cached_property
    def nics(self) -> NicSummary:
        """How busy every network card was."""
        return nic_summary(
            tuple(machine.name for machine in self.cluster.hosts),
            self.outcome.in_bytes,
            self.outcome.out_bytes,
            self.instance.nic_in_bytes_per_s,
            self.instance.nic_out_bytes_per_s,
            self.makespan_s,
        )

    @property
    def bottleneck(self) -> str:
        """The busiest network card, e.g. `m2 in`; empty if nothing crosses the network."""
        return self.nics.busiest

    def trace(self) -> Trace:
        """Every task execution and flow; rehearses once more if the times were not recorded."""
        outcome = self.outcome
        if outcome.record is None:
            outcome = _rehearse(self.instance, self.policy, self.planned, record=True)
        return trace_of(self.instance, self.graph, outcome, self.cluster)

    def num_tasks(self) -> list[dict[str, int]]:
        """Tasks by role for every machine; ring steps belong to their trainer and do not count."""
        counts: list[dict[str, int]] = [{} for _ in range(self.cluster.num_machines)]
        for task in range(self.graph.first_ring):
            role = ROLES[self.graph.role[task]].value
            here = counts[self.instance.task_machine[task]]
            here[role] = here.get(role, 0) + 1
        return counts

    def summary(self) -> dict[str, Any]:
        """All figures as plain values with stable names: what `headrace simulate --json` prints."""
        nics, outcome = self.nics, self.outcome
        file = PlacementFile.of(self.placement, self.cluster)
        return {
            "policy": self.policy,
            "placement": self.placement_name,
            "iterations": self.instance.num_iterations,
            "window": self.window,
            "seed": self.instance.seed,
            "makespan_s": self.makespan_s,
            "iteration_time_s": self.iteration_time_s,
            "mean_iteration_time_s": self.mean_iteration_time_s,
            "num_events": outcome.num_events,
            "bottleneck": {
                "nic": nics.busiest or None,
                "utilisation": float(nics.busiest_utilisation),
            },
            "machines": [
                {
                    "name": machine.name,
                    "tasks": tasks,
                    "in_bytes": float(outcome.in_bytes[m]),
                    "out_bytes": float(outcome.out_bytes[m]),
                    "in_utilisation": float(nics.in_utilisation[m]),
                    "out_utilisation": float(nics.out_utilisation[m]),
                }
                for m, (machine, tasks) in enumerate(
                    zip(self.cluster.hosts, self.num_tasks(), strict=True)
                )
            ],
            "tasks": {
                "samplers": list(file.samplers),
                "trainers": list(file.trainers),
                "servers": list(file.servers),
            },
            "profile": {"source": self.profile.source, "note": self.profile.note},
        }


@dataclass(frozen=True)
class Comparison:
    """The same placed job under several flow policies, with the same draws.

    Attributes:
        simulations: One per policy, in the order asked for.
    """

    simulations: tuple[Simulation, ...]

    @property
    def best(self) -> Simulation:
        """The one with the smallest makespan; of equal ones the first."""
        return min(self.simulations, key=lambda each: each.makespan_s)

    def relative_makespan(self, simulation: Simulation) -> float:
        """Makespan as a multiple of the best one."""
        best_s = self.best.makespan_s
        return simulation.makespan_s / best_s if best_s > 0 else 1.0

    def summary(self) -> dict[str, Any]:
        """All figures as plain values: what `headrace simulate --compare --json` prints."""
        summaries = [each.summary() for each in self.simulations]
        same = ("placement", "iterations", "window", "seed", "tasks", "profile")
        differing = (
            *("policy", "makespan_s", "iteration_time_s", "mean_iteration_time_s"),
            *("num_events", "bottleneck"),
        )
        return {
            **{key: summaries[0][key] for key in same},
            "best": self.best.policy,
            "policies": [
                {key: summary[key] for key in differing}
                | {"relative_makespan": self.relative_makespan(each)}
                for each, summary in zip(self.simulations, summaries, strict=True)
            ],
        }


def simulate(
    cluster: Cluster,
    job: Job,
    profile: Profile | None = None,
    placement: AnyPlacement = "colocate",
    policy: str | None = None,
    iterations: int | None = None,
    window: AnyWindow = None,
    seed: int = 0,
    record: bool = False,
) -> Simulation:
    """Rehearse a job on a cluster in virtual time.

    Args:
        cluster: The machines.
        job: The job.
        profile: Its times and volumes; without one, the synthetic `default_profile`.
        placement: A placement, a plan, the name of a placement method, or a placement or plan file.
        policy: Name of a flow policy; the plan's, or `priority`, if not given.
        iterations: Instead of the job's.
        window: Run-ahead window instead of the job's: an integer >= 1 or `unlimited`.
        seed: Seed of all draws; the same seed gives the same result bit for bit.
        record: Whether to keep the times of every task and flow, for `Simulation.trace`.

    Raises:
        SpecError: A name is unknown, a file cannot be read, or the values do not belong together.
        InfeasibleError: The job does not fit the cluster.
    """
    if policy is None:
        policy = default_policy(placement)
    _check_policy(policy)
    placed = _place(cluster, job, profile, placement, iterations, window, seed)
    return placed.rehearse(policy, record)


def default_policy(placement: AnyPlacement) -> str:
    """The flow policy of a plan or plan file, else `priority`.

    Raises:
        SpecError: There is no such file, or it cannot be understood.
    """
    if isinstance(placement, Plan):
        return placement.policy
    if isinstance(placement, Placement) or not Path(placement).is_file():
        return DEFAULT_POLICY
    plan = None if placement in PLACEMENT_METHODS else find_plan(placement)
    return DEFAULT_POLICY if plan is None else plan.policy


def compare(
    cluster: Cluster,
    job: Job,
    profile: Profile | None = None,
    policies: Sequence[str] | None = None,
    placement: AnyPlacement = "colocate",
    iterations: int | None = None,
    window: AnyWindow = None,
    seed: int = 0,
    on_step: Callable[[str], None] | None = None,
) -> Comparison:
    """Rehearse one placed job under several flow policies, all with the same draws.

    Args:
        cluster: The machines.
        job: The job.
        profile: Its times and volumes; without one, the synthetic `default_profile`.
        policies: Names of flow policies; all of them if not given.
        placement: A placement, a plan, the name of a placement method, or a placement or plan file.
        iterations: Instead of the job's.
        window: Run-ahead window instead of the job's: an integer >= 1 or `unlimited`.
        seed: Seed of all draws.
        on_step: Called with the name of every policy before it is rehearsed.

    Raises:
        SpecError: A name is unknown, a file cannot be read, or the values do not belong together.
        InfeasibleError: The job does not fit the cluster.
    """
    names = tuple(dict.fromkeys(FLOW_POLICIES if policies is None else policies))
    if not names:
        raise SpecError("there is no flow policy to compare", f"name some of {_policy_names()}")
    for name in names:
        _check_policy(name)
    placed = _place(cluster, job, profile, placement, iterations, window, seed)
    simulations = []
    for name in names:
        if on_step is not None:
            on_step(name)
        simulations.append(placed.rehearse(name))
    return Comparison(tuple(simulations))


def _rehearse(instance: Instance, policy: str, planned: bool, record: bool = False) -> Outcome:
    # A plan is held to its prediction to the last bit, so it keeps the kernel that predicted it.
    work = instance.num_iterations * (instance.num_tasks + instance.num_edges) * instance.num_edges
    return rehearse(instance, policy, record=record, general=work <= _SMALL and not planned)


@dataclass(frozen=True)
class _Placed:
    """A job on its machines, ready to be rehearsed under any policy."""

    cluster: Cluster
    job: Job
    profile: Profile
    placement: Placement
    placement_name: str
    instance: Instance
    graph: TaskGraph
    planned: bool

    def rehearse(self, policy: str, record: bool = False) -> Simulation:
        outcome = _rehearse(self.instance, policy, self.planned, record)
        num = self.instance.num_iterations
        half = replace(self.instance, num_iterations=num // 2)
        half_s = _rehearse(half, policy, self.planned).makespan_s if num > 1 else 0.0
        return Simulation(
            cluster=self.cluster,
            job=self.job,
            profile=self.profile,
            placement=self.placement,
            placement_name=self.placement_name,
            policy=policy,
            instance=self.instance,
            graph=self.graph,
            planned=self.planned,
            outcome=outcome,
            iteration_time_s=(outcome.makespan_s - half_s) / (num - num // 2),
        )


def _place(
    cluster: Cluster,
    job: Job,
    profile: Profile | None,
    placement: AnyPlacement,
    iterations: int | None,
    window: AnyWindow,
    seed: int,
) -> _Placed:
    if iterations is not None and iterations < 1:
        raise SpecError(f"{iterations} iterations were asked for", "rehearse at least 1")
    if window == "unlimited":
        num_ahead: int | None = UNLIMITED_WINDOW
    elif window is None or window >= 1:
        num_ahead = window
    else:
        raise SpecError(f"the window is {window}", "use 1 for no overlap, more, or `unlimited`")
    if profile is None:
        profile = default_profile()
    found, plan, name = _find_placement(placement, cluster, job, profile, seed)
    instance, graph = build_instance(
        cluster,
        job,
        profile,
        found,
        seeds=None if plan is None or plan.seed_mix is None else plan.seed_mix.array(cluster),
        num_iterations=iterations,
        window=num_ahead,
        seed=seed,
    )
    return _Placed(cluster, job, profile, found, name, instance, graph, plan is not None)


def _find_placement(
    placement: AnyPlacement, cluster: Cluster, job: Job, profile: Profile, seed: int
) -> tuple[Placement, Plan | None, str]:
    """The placement, the plan that it is part of, if any, and where they come from."""
    if isinstance(placement, Placement):
        return placement, None, "given"
    if isinstance(placement, Plan):
        return placement.placement.resolve(cluster), placement, "given"
    if isinstance(placement, str) and placement in PLACEMENT_METHODS:
        return place(placement, cluster, job, profile, seed), None, placement
    path = Path(placement)
    is_a_bare_word = path.name == str(placement) and not path.suffix
    if is_a_bare_word and not path.exists():
        likely = difflib.get_close_matches(path.name, PLACEMENT_METHODS, n=1)
        known = ", ".join(PLACEMENT_METHODS)
        raise SpecError(
            f"there is no placement method and no file called {path.name!r}",
            f"did you mean {likely[0]}?" if likely else f"use {known} or a placement file",
        )
    return load_placement(path, cluster, job), find_plan(path), str(path)


def _policy_names() -> str:
    return ", ".join(FLOW_POLICIES)


def _check_policy(name: str) -> None:
    if name not in FLOW_POLICIES:
        likely = difflib.get_close_matches(name, FLOW_POLICIES, n=1)
        guess = f"did you mean {likely[0]}? They are" if likely else "use one of"
        raise SpecError(f"there is no flow policy {name!r}", f"{guess} {_policy_names()}")
