"""Simulation of a placed job."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from headrace.api.documents.load import find_plan, load_placement
from headrace.api.results.simulation import Comparison, Simulation, run_simulator
from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.job import UNLIMITED_WINDOW, Job, JobKind
from headrace.core.placement import Placement
from headrace.core.plan import Plan
from headrace.core.profile import Problem, Profile
from headrace.core.tasks import TaskGraph
from headrace.planner.methods import PLACEMENT_METHODS, place
from headrace.policies.flow import FLOW_POLICIES
from headrace.profiling.default_profile import default_profile
from headrace.simulator import Instance, build_instance

__all__ = [
    "DEFAULT_POLICY",
    "AnyPlacement",
    "AnyWindow",
    "Comparison",
    "Simulation",
    "compare",
    "default_policy",
    "simulate",
]

AnyPlacement = Placement | Plan | str | os.PathLike[str]
"""A placement, a plan, the name of a placement method, or the path of a placement or plan file."""

DEFAULT_POLICY = "priority"
"""Flow policy if neither the user nor a plan specifies one."""

AnyWindow = int | Literal["unlimited"] | None
"""A run-ahead window K >= 1, `unlimited`, or None for the job's."""


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
    """Simulate a job on a cluster.

    Args:
        cluster: The machines.
        job: The job.
        profile: Times and volumes of the job; the synthetic `default_profile` if not given.
        placement: A placement, a plan, the name of a placement method, or a placement or plan file.
        policy: Name of a flow policy; the plan's, or `priority`, if not given.
        iterations: Overrides the job's iterations.
        window: Overrides the job's run-ahead window: an integer >= 1 or `unlimited`.
        seed: Random seed; equal seeds give bit-identical results.
        record: Whether to record the times of all tasks and flows, for `Simulation.trace`.

    Raises:
        SpecError: A name is unknown, a file is unreadable, or the values are inconsistent.
        InfeasibleError: The job does not fit the cluster.

    Example:
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
        >>> simulation = headrace.simulate(cluster, job)
        >>> simulation
        49.55 ms per iteration; 1.052 s for 20 under priority.
        The network is the bottleneck: m-2 sends at 97% of its 1 Gbps.
        >>> round(simulation.makespan_s, 3)
        1.052
    """
    if policy is None:
        policy = default_policy(placement)
    check_policy(policy)
    problem = Problem(cluster, job, default_profile() if profile is None else profile)
    placed = _place(problem, placement, iterations, window, seed)
    return placed.simulate(policy, record)


def default_policy(placement: AnyPlacement) -> str:
    """Flow policy of a plan or plan file, otherwise `priority`."""
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
    """Simulate one placed job under several flow policies, with the same random draws.

    Args:
        cluster: The machines.
        job: The job.
        profile: Times and volumes of the job; the synthetic `default_profile` if not given.
        policies: Names of flow policies; all if not given.
        placement: A placement, a plan, the name of a placement method, or a placement or plan file.
        iterations: Overrides the job's iterations.
        window: Overrides the job's run-ahead window: an integer >= 1 or `unlimited`.
        seed: Random seed.
        on_step: Called with the name of each policy before it is simulated.

    Raises:
        SpecError: A name is unknown, a file is unreadable, or the values are inconsistent.
        InfeasibleError: The job does not fit the cluster.

    Example:
        >>> import headrace
        >>> machines = [headrace.Machine(name="m", count=3, nic="1Gbps")]
        >>> cluster = headrace.Cluster(machines=machines)
        >>> job = headrace.Job(trainers=2, batch_size=100, iterations=20)
        >>> found = headrace.compare(cluster, job, policies=["maxmin", "fifo"])
        >>> found
        maxmin        1.052 s    +0.0%
        fifo          1.444 s   +37.3%
        >>> found.best.policy
        'maxmin'
    """
    names = check_policies(FLOW_POLICIES if policies is None else policies)
    problem = Problem(cluster, job, default_profile() if profile is None else profile)
    placed = _place(problem, placement, iterations, window, seed)
    simulations = []
    for name in names:
        if on_step is not None:
            on_step(name)
        simulations.append(placed.simulate(name))
    return Comparison(tuple(simulations))


@dataclass(frozen=True)
class _Placed:
    """A placed job, ready for simulation under any policy."""

    problem: Problem
    placement: Placement
    placement_name: str
    instance: Instance
    graph: TaskGraph
    planned: bool

    def simulate(self, policy: str, record: bool = False) -> Simulation:
        outcome = run_simulator(self.instance, policy, self.planned, record)
        num = self.instance.num_iterations
        half = replace(self.instance, num_iterations=num // 2)
        half_s = run_simulator(half, policy, self.planned).makespan_s if num > 1 else 0.0
        return Simulation(
            *self.problem,
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
    problem: Problem,
    placement: AnyPlacement,
    iterations: int | None,
    window: AnyWindow,
    seed: int,
) -> _Placed:
    if iterations is not None and iterations < 1:
        raise SpecError(f"{iterations} iterations were requested", "request at least 1")
    if window == "unlimited":
        num_ahead: int | None = UNLIMITED_WINDOW
    elif window is None or window >= 1:
        num_ahead = window
    else:
        raise SpecError(f"the window is {window}", "use 1 for no overlap, more, or `unlimited`")
    if problem.job.kind is JobKind.FULL_GRAPH and not problem.job.swaps:
        raise SpecError(
            "the job does not have the rows that its layers exchange",
            "add `swaps` to the job file",
        )
    found, plan, name = _find_placement(placement, problem, seed)
    instance, graph = build_instance(
        problem,
        found,
        seeds=None if plan is None else _seeds_of(plan, problem),
        num_iterations=iterations,
        window=num_ahead,
        seed=seed,
    )
    return _Placed(problem, found, name, instance, graph, plan is not None)


def _seeds_of(plan: Plan, problem: Problem) -> np.ndarray | None:
    """Seeds of a plan by sampler and partition; None if they are uniform and equal."""
    if plan.seed_mix is not None:
        return plan.seed_mix.array(problem.cluster)
    if plan.shares is None:
        return None
    if plan.job.trainers * plan.job.batch_size != problem.job.trainers * problem.job.batch_size:
        raise SpecError(
            f"the plan has shares of {plan.job.trainers} x {plan.job.batch_size} seeds, the job "
            f"{problem.job.trainers} x {problem.job.batch_size}",
            "plan this job, or simulate the job of the plan",
        )
    return plan.seeds


def _find_placement(
    placement: AnyPlacement, problem: Problem, seed: int
) -> tuple[Placement, Plan | None, str]:
    """Return the placement, its plan, if any, and their origin."""
    if isinstance(placement, Placement):
        return placement, None, "given"
    if isinstance(placement, Plan):
        return placement.placement.resolve(problem.cluster), placement, "given"
    if isinstance(placement, str) and placement in PLACEMENT_METHODS:
        return place(placement, problem, seed), None, placement
    path = Path(placement)
    is_a_bare_word = path.name == str(placement) and not path.suffix
    if is_a_bare_word and not path.exists():
        likely = difflib.get_close_matches(path.name, PLACEMENT_METHODS, n=1)
        known = ", ".join(PLACEMENT_METHODS)
        raise SpecError(
            f"{path.name!r} is neither a placement method nor a file",
            f"did you mean {likely[0]}?" if likely else f"use {known} or a placement file",
        )
    return load_placement(path, problem.cluster, problem.job), find_plan(path), str(path)


def _policy_names() -> str:
    return ", ".join(FLOW_POLICIES)


def check_policies(policies: Iterable[str]) -> tuple[str, ...]:
    """Different names of flow policies, in order; raises `SpecError` if there is none."""
    names = tuple(dict.fromkeys(policies))
    if not names:
        raise SpecError("there is no flow policy to compare", f"name some of {_policy_names()}")
    for name in names:
        check_policy(name)
    return names


def check_policy(name: str) -> None:
    """Check the name of a flow policy; raises `SpecError` with a likely one."""
    if name not in FLOW_POLICIES:
        likely = difflib.get_close_matches(name, FLOW_POLICIES, n=1)
        guess = f"did you mean {likely[0]}? They are" if likely else "use one of"
        raise SpecError(f"there is no flow policy {name!r}", f"{guess} {_policy_names()}")
