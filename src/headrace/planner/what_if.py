"""Changes of one thing at a time, and what rehearsals of a plan make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import HeadraceError
from headrace.core.job import UNLIMITED_WINDOW, Job, Role
from headrace.core.placement import Placement
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.core.report import Change
from headrace.planner.explain import busiest_classes, doubled_nics, faster, nics_of
from headrace.planner.planner import AUTO, make_plan, policies_to_try
from headrace.simulator import build_instance, simulate

METHOD = "anneal"
"""Which places tasks anew where a change asks for it."""

_PARTS_DIFFER = 0.05
"""Shares of the graph that differ by less are those that were asked for."""

_MOST_CLASSES = 3
_MOST_MACHINES_TO_PLAN = 32
"""Planning anew for each change takes seconds up to this size, beyond it minutes."""


@dataclass(frozen=True)
class _Setup:
    """What is rehearsed."""

    cluster: Cluster
    job: Job
    profile: Profile
    placement: Placement
    seeds: np.ndarray
    policy: str

    def time_s(self, iterations: int) -> float:
        """What an iteration adds to a long job, as `Simulation.iteration_time_s` has it."""
        instance, _ = build_instance(
            self.cluster,
            self.job,
            self.profile,
            self.placement,
            seeds=self.seeds,
            num_iterations=iterations,
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
    """Rehearse a plan as it is, then with one thing changed at a time.

    Args:
        plan: What was run.
        profile: Times and volumes; those of the run, or the plan's.
        iterations: How many to rehearse, at least 2.
        part_shares: Of the graph that each machine has now, where that is known.
        on_step: Called with every change before it is rehearsed.

    Returns:
        Time per iteration as it is, and all changes, largest saving per seed first.

    Raises:
        SpecError: The profile does not fit the plan.
    """
    # A trainer's batch does not change with its number of samplers.
    _, per_trainer = profile.nominal_seeds(plan.job)
    profile = profile.model_copy(update={"seeds_per_trainer": per_trainer})
    base = _Setup(
        plan.cluster, _job_of(plan, profile), profile, plan.placed, plan.seeds, plan.policy
    )
    base_s = base.time_s(iterations)
    changes = []
    for idea in _ideas(plan, base, part_shares):
        on_step(idea.change)
        try:
            setup = idea.make()
            time_s = setup.time_s(iterations)
        except HeadraceError:
            # What does not fit these machines is no advice.
            continue
        per_seed = time_s / setup.job.trainers * base.job.trainers
        saving = 1 - per_seed / base_s if base_s > 0 else 0.0
        changes.append(Change(change=idea.change, saving=saving, time_s=time_s, remark=idea.remark))
    # Of those that save alike, what costs least comes first, as they were thought of.
    return base_s, tuple(sorted(changes, key=lambda change: -round(change.saving, 2)))


def _job_of(plan: Plan, profile: Profile) -> Job:
    if profile.model_bytes is None:
        return plan.job
    return plan.job.model_copy(update={"model_bytes": profile.model_bytes})


def _ideas(plan: Plan, base: _Setup, part_shares: Sequence[float]) -> Iterator[_Idea]:
    yield from _settings(base)
    if len(part_shares) == base.cluster.num_machines:
        yield from _parts(base, np.array(part_shares))
    if plan.cluster.num_machines <= _MOST_MACHINES_TO_PLAN:
        yield from _plans(plan, base)
    yield from _hardware(plan, base)


def _hardware(plan: Plan, base: _Setup) -> Iterator[_Idea]:
    hosts = base.cluster.hosts
    classes = busiest_classes(plan)[:_MOST_CLASSES]
    groups = [*classes, *([classes[0][:1]] if len(classes[0]) > 1 else [])]
    for members in groups:
        wider = doubled_nics(hosts, members)
        yield _Idea(
            f"doubling {nics_of(hosts, members)}",
            "Tasks stay where they are.",
            partial(replace, base, cluster=wider),
        )
    for role, words in ((Role.TRAINER, "trainers"), (Role.SAMPLER, "samplers")):
        yield _Idea(
            f"{words} that compute twice as fast",
            "A GPU, more threads or cores that are not shared.",
            partial(replace, base, profile=faster(base.profile, role)),
        )
    yield _Idea(
        "half the bytes per seed",
        "`headrace partition --features float16`, or fewer neighbours: see what accuracy says.",
        partial(replace, base, profile=_lighter(base.profile)),
    )


def _parts(base: _Setup, shares: np.ndarray) -> Iterator[_Idea]:
    wanted = _shares_by_nic(base.cluster.hosts)
    if np.abs(wanted - shares).max() > _PARTS_DIFFER:
        yield _Idea(
            "larger graph parts where network cards are faster",
            "`headrace partition --cluster`; estimated from the parts as they are.",
            partial(_resized, base, wanted / np.maximum(shares, 1e-9)),
        )


def _shares_by_nic(hosts: tuple[Machine, ...]) -> np.ndarray:
    """Shares of the graph by outgoing bandwidth, none above its share of all memory."""
    share = np.array([host.nic_out for host in hosts])
    memory = np.array([host.resources.get("memory", 0.0) for host in hosts])
    share = share / share.sum()
    if (memory > 0).all():
        share = np.minimum(share, memory / memory.sum())
    wanted: np.ndarray = share / share.sum()
    return wanted


def _resized(base: _Setup, ratio: np.ndarray) -> _Setup:
    """Parts of other sizes: seeds come from them, and neighbours lie in them, in proportion."""
    before = base.profile.store_traffic.bytes_per_seed_matrix(len(ratio))
    away = before * ratio * (1 - np.eye(len(ratio)))
    # What a seed needs in all stays; what does not come from other parts comes from its own.
    whole = before.sum(axis=1)
    away *= np.minimum(1.0, whole / np.maximum(away.sum(axis=1), 1e-9))[:, None]
    matrix = away + np.diag(np.maximum(whole - away.sum(axis=1), 0.0))
    traffic = base.profile.store_traffic.model_copy(
        update={
            "matrix": tuple(tuple(row) for row in matrix.tolist()),
            "bytes_per_seed": 0.0,
            "locality": 0.0,
            "relative_errors": (),
        }
    )
    seeds = base.seeds * ratio
    seeds *= base.seeds.sum(axis=1, keepdims=True) / seeds.sum(axis=1, keepdims=True)
    profile = base.profile.model_copy(update={"store_traffic": traffic})
    return replace(base, profile=profile, seeds=seeds)


def _settings(base: _Setup) -> Iterator[_Idea]:
    for policy in policies_to_try(AUTO, base.cluster, base.job):
        if policy != base.policy:
            yield _Idea(
                f"sharing the network by {policy} instead of {base.policy}",
                f"Plan with `--policy {policy}`.",
                partial(replace, base, policy=policy),
            )
    window = base.job.window
    if window != UNLIMITED_WINDOW:
        wider = base.job.model_copy(update={"window": 2 * window})
        yield _Idea(
            f"a window of {2 * window} instead of {window}",
            "In the job file; samplers then keep more batches in memory.",
            partial(replace, base, job=wider),
        )


def _plans(plan: Plan, base: _Setup) -> Iterator[_Idea]:
    job = base.job
    yield _Idea(
        "planning again with the times of this run",
        "`headrace profile --trace`, then `headrace plan`.",
        partial(_planned, plan, base, {}),
    )
    each = job.samplers_per_trainer
    yield _Idea(
        f"{each + 1} samplers per trainer instead of {each}",
        "In the job file, planned again.",
        partial(_planned, plan, base, {"samplers_per_trainer": each + 1}),
    )
    remark = "Planned again; the global batch changes with it, so see what accuracy says."
    for num in (job.trainers + 1, job.trainers - 1):
        if num >= 1:
            yield _Idea(
                f"{num} trainer{'s' if num > 1 else ''} instead of {job.trainers}",
                remark,
                partial(_planned, plan, base, {"trainers": num}),
            )


def _planned(plan: Plan, base: _Setup, changes: dict[str, Any]) -> _Setup:
    job = base.job.model_copy(update=changes)
    made = make_plan(
        base.cluster,
        job,
        base.profile,
        method=METHOD,
        policy=plan.policy,
        seed_mix=plan.asked.seed_mix if changes else AUTO,
        seed=plan.seed,
        also=() if changes else (plan.placed,),
    )
    return _Setup(base.cluster, job, base.profile, made.placed, made.seeds, made.policy)


def _lighter(profile: Profile) -> Profile:
    stores, batches = profile.store_traffic, profile.batch_traffic
    matrix = tuple(tuple(value / 2 for value in row) for row in stores.matrix)
    half = {"matrix": matrix, "bytes_per_seed": stores.bytes_per_seed / 2}
    fewer = batches.model_copy(update={"bytes_per_seed": batches.bytes_per_seed / 2})
    return profile.model_copy(
        update={"store_traffic": stores.model_copy(update=half), "batch_traffic": fewer}
    )
