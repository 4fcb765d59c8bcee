"""Growth of sub-batches from a profiling run with several batch sizes."""

from __future__ import annotations

import numpy as np

from headrace.core.growth import Growth
from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.core.trace import Trace

_LEAST_ITERATIONS = 3
"""Measured iterations per size; sizes with fewer are not used."""

_RANGE = 1.8
"""Least quotient of the largest and the smallest size: ends of epochs are too close for a curve."""

_NEXT_SIZE = 1.2
"""Least quotient of two sizes; closer ones, as at the end of an epoch, are one size."""


def growth_of(trace: Trace, plan: Plan, skip: int, num: int) -> Growth | None:
    """Growth of times and bytes with seeds; None if all iterations have about the same size.

    `skip` iterations at the start, of `num`, are not used.
    """
    if trace.seeds is None:
        return None
    per_sampler = trace.seeds[:, skip:num].mean(axis=0)
    groups = _groups(per_sampler)
    if len(groups) < 2:
        return None
    smallest, largest = (float(per_sampler[groups[i]].mean()) for i in (0, -1))
    if largest < _RANGE * smallest:
        return None
    tables = _Tables(trace, plan)
    means = [tables.means(skip + group) for group in groups]
    measured = {
        name: tuple(each[name] for each in means)
        for name in means[0]
        if all(each[name] > 0 for each in means)
    }
    return Growth(seeds=tuple(float(per_sampler[group].mean()) for group in groups), **measured)


def trainer_steps(trace: Trace, plan: Plan, skip: int) -> dict[int, dict[str, float]]:
    """Median seconds of a trainer's step, by its seeds and by machine class.

    `skip` iterations at the start are not used.
    """
    if trace.seeds is None:
        return {}
    num, per_trainer = trace.seeds.shape[1], plan.job.samplers_per_trainer
    seeds = trace.seeds.reshape(plan.job.trainers, per_trainer, num).sum(axis=1)
    rows, roles = trace.executions, np.array(trace.task_roles)
    first = int(np.argmax(roles == Role.TRAINER))
    is_step = (roles[rows.task] == Role.TRAINER) & (rows.iteration >= skip) & (rows.iteration < num)
    times_s, trainer = (rows.end_s - rows.start_s)[is_step], rows.task[is_step] - first
    iteration = rows.iteration[is_step]
    kinds = np.array([plan.cluster.hosts[m].kind for m in plan.placed.trainers])
    found: dict[int, dict[str, float]] = {}
    for group in _groups(seeds[:, skip:].mean(axis=0)):
        for kind in np.unique(kinds).tolist():
            of = np.isin(iteration, skip + group) & (kinds[trainer] == kind)
            own = seeds[kinds == kind][:, skip + group]
            if of.any() and (median_s := float(np.median(times_s[of]))) > 0:
                found.setdefault(round(float(own.mean())), {})[kind] = median_s
    return found


def _groups(sizes: np.ndarray) -> list[np.ndarray]:
    """Positions of iterations with about the same size, smallest size first."""
    order = np.argsort(sizes, kind="stable")
    order = order[sizes[order] > 0]
    if not len(order):
        return []
    cuts = np.flatnonzero(sizes[order][1:] > _NEXT_SIZE * sizes[order][:-1]) + 1
    return [np.sort(each) for each in np.split(order, cuts) if len(each) >= _LEAST_ITERATIONS]


class _Tables:
    """Sums of a trace by iteration."""

    def __init__(self, trace: Trace, plan: Plan) -> None:
        roles, rows = np.array(trace.task_roles), trace.executions
        num = 1 + int(rows.iteration.max(initial=0))
        self._num_samplers = plan.job.num_samplers
        time_s = np.maximum(rows.end_s - rows.start_s, 0.0)
        self._times_s = {
            role: np.bincount(
                rows.iteration[roles[rows.task] == role],
                weights=time_s[roles[rows.task] == role],
                minlength=num,
            )
            for role in (Role.SAMPLER, Role.TRAINER)
        }
        self._bytes = {Role.STORE: np.zeros(num), Role.SAMPLER: np.zeros(num)}
        targets = {Role.STORE: Role.SAMPLER, Role.SAMPLER: Role.TRAINER}
        for table in (trace.flows, trace.local):
            if table is None:
                continue
            inside = table.iteration < num
            for src, dst in targets.items():
                of = inside & (roles[table.src] == src) & (roles[table.dst] == dst)
                self._bytes[src] += np.bincount(
                    table.iteration[of], weights=table.num_bytes[of], minlength=num
                )

    def means(self, iterations: np.ndarray) -> dict[str, float]:
        """Bytes (means) and seconds (medians) of one sub-batch over some iterations."""
        num = self._num_samplers
        return {
            "store_bytes": float(self._bytes[Role.STORE][iterations].mean()) / num,
            "batch_bytes": float(self._bytes[Role.SAMPLER][iterations].mean()) / num,
            "sampler_time": float(np.median(self._times_s[Role.SAMPLER][iterations])) / num,
            "trainer_time": float(np.median(self._times_s[Role.TRAINER][iterations])) / num,
        }
