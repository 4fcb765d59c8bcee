"""Comparison of a plan's profile with a measured profile."""

from __future__ import annotations

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.job import JobKind, Role
from headrace.core.plan import Plan
from headrace.core.profile import Profile
from headrace.core.report import Assumption

_WORDS = {
    Role.STORE: "store, all requests of an iteration",
    Role.SAMPLER: "sampler, its sub-batch",
    Role.TRAINER: "trainer, a step",
    Role.SERVER: "parameter server, an update",
}


def assumptions_of(
    plan: Plan, measured: Profile, cache_hit_rate: float | None = None
) -> list[Assumption]:
    """Compare the plan's profile with the measured one, at the job's number of seeds.

    `cache_hit_rate` is that of the run's caches, None without caches.
    """
    job, assumed = plan.job, plan.profile
    is_sampled = job.kind is JobKind.SAMPLED
    kinds = tuple(dict.fromkeys(machine.kind for machine in plan.cluster.hosts))
    found = []
    for role, words in _WORDS.items():
        if role is Role.SERVER and not job.num_servers:
            continue
        if role in (Role.STORE, Role.SAMPLER) and not is_sampled:
            continue
        for kind in kinds:
            if kind not in measured.task_times.get(role, {}):
                continue
            where = f" (machine class {kind})" if len(kinds) > 1 else ""
            found.append(
                Assumption(
                    what=words + where,
                    unit="s",
                    assumed=_time_s(assumed, role, kind, plan),
                    measured=_time_s(measured, role, kind, plan),
                )
            )
    seeds = float(plan.seeds.sum())
    sampled = (
        ("stores to samplers, an iteration", _store_bytes),
        ("samplers to trainers, an iteration", _batch_bytes),
    )
    for what, per_seed in sampled if is_sampled else ():
        found.append(
            Assumption(
                what=what,
                unit="B",
                assumed=_times(per_seed(assumed, plan), seeds),
                measured=_times(per_seed(measured, plan), seeds),
            )
        )
    found.append(
        Assumption(
            what="gradients of a trainer, an iteration",
            unit="B",
            assumed=assumed.model_bytes if assumed.model_bytes is not None else job.model_bytes,
            measured=measured.model_bytes,
        )
    )
    if measured.full_graph is not None:
        found.append(
            Assumption(
                what="rows between trainers, an epoch",
                unit="B",
                assumed=_row_bytes(plan),
                measured=measured.full_graph.epoch_bytes,
            )
        )
    predicted = None if assumed.traffic is None else assumed.traffic.hit_rate
    if predicted is not None or cache_hit_rate is not None:
        found.append(
            Assumption(
                what="rows of other machines in caches",
                unit="%",
                assumed=predicted,
                measured=cache_hit_rate,
            )
        )
    return found


def _row_bytes(plan: Plan) -> float | None:
    figures, swaps = plan.profile.full_graph, plan.job.swaps
    if figures is None or not swaps:
        return None
    return sum(float(figures.volumes(swap).sum()) for swap in swaps)


def _time_s(profile: Profile, role: Role, kind: str, plan: Plan) -> float | None:
    try:
        time_s = profile.task_time(role, kind).mean
    except SpecError:
        return None
    return time_s * profile.seed_scale(role, plan.job)


def _store_bytes(profile: Profile, plan: Plan) -> float | None:
    try:
        matrix = profile.store_bytes_per_seed(plan.job, plan.cluster.num_machines)
    except SpecError:
        return None
    seeds = plan.seeds.sum(axis=0)
    return float(seeds @ matrix.sum(axis=1) / seeds.sum()) if seeds.sum() else None


def _batch_bytes(profile: Profile, plan: Plan) -> float | None:
    seeds = plan.job.batch_size / plan.job.samplers_per_trainer
    return float(profile.batch_bytes(plan.job, np.array(seeds))) / seeds


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
