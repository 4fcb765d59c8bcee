"""Effect of single changes on a plan, estimated by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from headrace.core.cluster import Machine
from headrace.core.errors import HeadraceError
from headrace.core.job import UNLIMITED_WINDOW, JobKind, Role
from headrace.core.placement import Placement
from headrace.core.plan import Plan, problem_of
from headrace.core.profile import Problem, Profile
from headrace.core.report import Change
from headrace.planner.explain import busiest_classes, doubled_nics, faster, nics_of
from headrace.planner.planner import AUTO, make_plan, policies_to_try
from headrace.simulator import build_instance, simulate

METHOD = "anneal"
"""Placement method for changes that need a new placement."""

_MIN_SHARE_DIFFERENCE = 0.05
"""Smallest difference between actual and requested graph shares that counts."""

_MOST_CLASSES = 3
_MOST_MACHINES_TO_PLAN = 32
"""Replanning per change takes seconds up to this size and minutes beyond."""


@dataclass(frozen=True)
class _Setup:
    """Input of one simulation."""

    problem: Problem
    placement: Placement
    seeds: np.ndarray
    policy: str

    def time_s(self, iterations: int) -> float:
        """Steady-state time per iteration; see `Simulation.iteration_time_s`."""
        instance, _ = build_instance(
            self.problem, self.placement, seeds=self.seeds, num_iterations=iterations
        )
        half = replace(instance, num_iterations=iterations // 2)
        took_s = simulate(instance, self.policy).makespan_s
        return (took_s - simulate(half, self.policy).makespan_s) / (iterations - iterations // 2)


@dataclass(frozen=True)
class _Idea:
    change: str
    remark: str
    make: Callable[[], _Setup]


def rehearse_changes(
    plan: Plan,
    profile: Profile,
    iterations: int,
    part_shares: Sequence[float] = (),
    on_step: Callable[[str], None] = lambda name: None,
) -> tuple[float, tuple[Change, ...]]:
    """Simulate a plan unchanged, then with one change at a time.

    `iterations` must be at least 2. `part_shares` is the share of the graph on each machine, if
    known. `on_step` is called with each change before it is simulated.

    Returns:
        Time per iteration without changes, and all changes, largest saving per seed first.

    Raises:
        SpecError: The profile does not match the plan.
    """
    # The batch size of a trainer does not depend on its number of samplers.
    _, per_trainer = profile.nominal_seeds(plan.job)
    profile = profile.model_copy(update={"seeds_per_trainer": per_trainer})
    problem = problem_of(plan).with_profile(profile)
    base = _Setup(problem, plan.placed, plan.seeds, plan.policy)
    base_s = base.time_s(iterations)
    changes = []
    for idea in _ideas(plan, base, part_shares):
        on_step(idea.change)
        try:
            setup = idea.make()
            time_s = setup.time_s(iterations)
        except HeadraceError:
            # Skip changes that do not fit the machines.
            continue
        per_seed = time_s / setup.problem.job.trainers * problem.job.trainers
        saving = 1 - per_seed / base_s if base_s > 0 else 0.0
        changes.append(Change(change=idea.change, saving=saving, time_s=time_s, remark=idea.remark))
    # Equal savings keep the order of `_ideas`, cheapest change first.
    return base_s, tuple(sorted(changes, key=lambda change: -round(change.saving, 2)))


def _ideas(plan: Plan, base: _Setup, part_shares: Sequence[float]) -> Iterator[_Idea]:
    if base.problem.job.kind is JobKind.FULL_GRAPH:
        # It has neither samplers nor batches, and a partition for each trainer.
        yield from _hardware(plan, base)
        return
    yield from _settings(base)
    if len(part_shares) == plan.cluster.num_machines:
        yield from _parts(base, np.array(part_shares))
    if plan.cluster.num_machines <= _MOST_MACHINES_TO_PLAN:
        yield from _plans(plan, base)
    yield from _hardware(plan, base)


def _hardware(plan: Plan, base: _Setup) -> Iterator[_Idea]:
    problem, hosts = base.problem, plan.cluster.hosts
    classes = busiest_classes(plan)[:_MOST_CLASSES]
    groups = [*classes, *([classes[0][:1]] if len(classes[0]) > 1 else [])]
    for members in groups:
        wider = problem._replace(cluster=doubled_nics(hosts, members))
        yield _Idea(
            f"doubling {nics_of(hosts, members)}",
            "Tasks stay where they are.",
            partial(replace, base, problem=wider),
        )
    is_sampled = problem.job.kind is JobKind.SAMPLED
    roles = ((Role.TRAINER, "trainers"), (Role.SAMPLER, "samplers"))
    for role, words in roles if is_sampled else roles[:1]:
        sooner = problem._replace(profile=faster(problem.profile, role))
        yield _Idea(
            f"{words} that compute twice as fast",
            "A GPU, more threads or cores that are not shared.",
            partial(replace, base, problem=sooner),
        )
    if not is_sampled:
        return
    lighter = problem._replace(profile=_lighter(problem.profile))
    yield _Idea(
        "half the bytes per seed",
        "`headrace partition --features auto` or `int8`, or fewer neighbours; check the accuracy.",
        partial(replace, base, problem=lighter),
    )


def _parts(base: _Setup, shares: np.ndarray) -> Iterator[_Idea]:
    wanted = _shares_by_nic(base.problem.cluster.hosts)
    if np.abs(wanted - shares).max() > _MIN_SHARE_DIFFERENCE:
        yield _Idea(
            "larger graph partitions on machines with faster NICs",
            "`headrace partition --cluster`; estimated from the current partitions.",
            partial(_resized, base, wanted / np.maximum(shares, 1e-9)),
        )


def _shares_by_nic(hosts: tuple[Machine, ...]) -> np.ndarray:
    """Graph shares in proportion to outgoing bandwidth, limited by memory shares."""
    share = np.array([host.nic_out for host in hosts])
    memory = np.array([host.resources.get("memory", 0.0) for host in hosts])
    share = share / share.sum()
    if (memory > 0).all():
        share = np.minimum(share, memory / memory.sum())
    wanted: np.ndarray = share / share.sum()
    return wanted


def _resized(base: _Setup, ratio: np.ndarray) -> _Setup:
    """Scale partition sizes; seeds and neighbours scale in proportion."""
    profile = base.problem.profile
    before = profile.store_traffic.bytes_per_seed_matrix(len(ratio))
    away = before * ratio * (1 - np.eye(len(ratio)))
    # Total bytes per seed are unchanged; the rest comes from the seed's own partition.
    whole = before.sum(axis=1)
    away *= np.minimum(1.0, whole / np.maximum(away.sum(axis=1), 1e-9))[:, None]
    matrix = away + np.diag(np.maximum(whole - away.sum(axis=1), 0.0))
    traffic = profile.store_traffic.model_copy(
        update={
            "matrix": tuple(tuple(row) for row in matrix.tolist()),
            "bytes_per_seed": 0.0,
            "locality": 0.0,
            "relative_errors": (),
        }
    )
    seeds = base.seeds * ratio
    seeds *= base.seeds.sum(axis=1, keepdims=True) / seeds.sum(axis=1, keepdims=True)
    profile = profile.model_copy(update={"store_traffic": traffic})
    return replace(base, problem=base.problem._replace(profile=profile), seeds=seeds)


def _settings(base: _Setup) -> Iterator[_Idea]:
    for policy in policies_to_try(AUTO, base.problem):
        if policy != base.policy:
            yield _Idea(
                f"flow policy {policy} instead of {base.policy}",
                f"Plan with `--policy {policy}`.",
                partial(replace, base, policy=policy),
            )
    job = base.problem.job
    if job.window != UNLIMITED_WINDOW:
        wider = job.model_copy(update={"window": 2 * job.window})
        yield _Idea(
            f"a window of {wider.window} instead of {job.window}",
            "Set `window` in the job file; samplers then keep more batches in memory.",
            partial(replace, base, problem=base.problem._replace(job=wider)),
        )


def _plans(plan: Plan, base: _Setup) -> Iterator[_Idea]:
    job = base.problem.job
    yield _Idea(
        "replanning with the times of this run",
        "`headrace profile --trace`, then `headrace plan`.",
        partial(_planned, plan, base, {}),
    )
    each = job.samplers_per_trainer
    yield _Idea(
        f"{each + 1} samplers per trainer instead of {each}",
        "Set it in the job file and plan again.",
        partial(_planned, plan, base, {"samplers_per_trainer": each + 1}),
    )
    remark = "Plan again; this changes the global batch, so check the accuracy."
    for num in (job.trainers + 1, job.trainers - 1):
        if num >= 1:
            yield _Idea(
                f"{num} trainer{'s' if num > 1 else ''} instead of {job.trainers}",
                remark,
                partial(_planned, plan, base, {"trainers": num}),
            )


def _planned(plan: Plan, base: _Setup, changes: dict[str, Any]) -> _Setup:
    problem = base.problem._replace(job=base.problem.job.model_copy(update=changes))
    made = make_plan(
        problem,
        method=METHOD,
        policy=plan.policy,
        seed_mix=plan.asked.seed_mix if changes else AUTO,
        shares=plan.asked.shares,
        seed=plan.seed,
        also=() if changes else (plan.placed,),
    )
    return _Setup(problem, made.placed, made.seeds, made.policy)


def _lighter(profile: Profile) -> Profile:
    stores, batches = profile.store_traffic, profile.batch_traffic
    matrix = tuple(tuple(value / 2 for value in row) for row in stores.matrix)
    half = {"matrix": matrix, "bytes_per_seed": stores.bytes_per_seed / 2}
    fewer = batches.model_copy(update={"bytes_per_seed": batches.bytes_per_seed / 2})
    return profile.model_copy(
        update={"store_traffic": stores.model_copy(update=half), "batch_traffic": fewer}
    )
