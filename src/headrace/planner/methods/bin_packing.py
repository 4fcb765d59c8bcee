"""Packing of task counts onto machines, and conversion from counts to individual tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.job import Job, Role
from headrace.core.placement import demand_vector, resource_names


def give_identities(
    counts: Counts, order: np.ndarray, samplers_per_trainer: int
) -> tuple[np.ndarray, np.ndarray]:
    """Assign trainers and samplers to the counts, keeping each trainer's samplers together.

    Sampler slots of a machine go to its own trainers first, one trainer after the other. The
    remaining samplers of a trainer go to as few machines as possible. Trainers are numbered in the
    machine order `order`.

    Returns:
        Machine per trainer, and per sampler with shape (trainers, samplers per trainer).
    """
    trainers = np.repeat(order, counts.trainers[order])
    samplers = np.full((len(trainers), samplers_per_trainer), -1, dtype=np.int64)
    places = counts.samplers.copy()
    for w, machine in enumerate(trainers.tolist()):
        beside = min(samplers_per_trainer, int(places[machine]))
        samplers[w, :beside] = machine
        places[machine] -= beside
    for w in np.flatnonzero((samplers < 0).any(axis=1)).tolist():
        missing = np.flatnonzero(samplers[w] < 0)
        while len(missing):
            # Best fit: the smallest sufficient machine, else the largest one.
            enough = np.flatnonzero(places >= len(missing))
            if len(enough):
                machine = int(enough[np.argmin(places[enough])])
            else:
                machine = int(np.argmax(places))
            here = min(len(missing), int(places[machine]))
            samplers[w, missing[:here]] = machine
            places[machine] -= here
            missing = missing[here:]
    return trainers, samplers


_ROUNDING = 5e-10
"""Relative capacity tolerance for rounding; half of that of `Placement.check`."""

_NEVER = np.int32(-(2**30))
"""Marks infeasible (trainers, servers); stays negative for any number of samplers."""


class Totals(NamedTuple):
    """Number of tasks to pack per role."""

    samplers: int
    trainers: int
    servers: int


class Step(NamedTuple):
    """A maximal set of tasks for one machine."""

    trainers: int
    servers: int
    samplers: int


@dataclass(frozen=True)
class Room:
    """Free resources next to the stores, and the demand of one task per role.

    Attributes:
        names: Resource names.
        free: Free amounts, shape (num_machines, resource); negative where a store does not fit.
        sampler: Demand of one sampler.
        trainer: Demand of one trainer.
        server: Demand of one parameter server.
    """

    names: tuple[str, ...]
    free: np.ndarray
    sampler: np.ndarray
    trainer: np.ndarray
    server: np.ndarray

    @classmethod
    def of(cls, cluster: Cluster, job: Job) -> Room:
        """Free resources of a cluster that hosts only the stores."""
        names = resource_names(cluster, job)
        capacities = cluster.capacities(names)
        return cls(
            names=names,
            free=capacities - demand_vector(job, Role.STORE, names) + _slack(capacities),
            sampler=demand_vector(job, Role.SAMPLER, names),
            trainer=demand_vector(job, Role.TRAINER, names),
            server=demand_vector(job, Role.SERVER, names),
        )

    def without(self, taken: np.ndarray) -> Room:
        """Free resources after subtracting `taken`, which has the shape of `free`."""
        return replace(self, free=self.free - taken)


@dataclass(frozen=True)
class Counts:
    """Tasks per machine."""

    samplers: np.ndarray
    trainers: np.ndarray
    servers: np.ndarray


def totals_of(job: Job) -> Totals:
    """All tasks of a job that need a placement."""
    return Totals(job.num_samplers, job.trainers, job.num_servers)


def num_fitting(free: np.ndarray, demand: np.ndarray) -> np.ndarray:
    """Number of tasks that fit, as a fraction; infinite for an empty demand.

    The last axis of `free` is resources. Results are negative where a resource is exceeded.
    """
    wanted = demand > 0
    if not wanted.any():
        overdrawn = (free < 0).any(axis=-1)
        return np.where(overdrawn, -1.0, np.inf)
    fits: np.ndarray = (free[..., wanted] / demand[wanted]).min(axis=-1)
    return np.where((free < 0).any(axis=-1), np.minimum(fits, -1.0), fits)


def pack(room: Room, totals: Totals, order: np.ndarray, samplers_per_trainer: int) -> Counts | None:
    """Pack all tasks on the fewest first machines of `order` (Alg. 2, with zero counts).

    Alg. 2 does not define which feasible counts to use. From the last used machine to the first,
    this takes those with the most samplers next to a trainer, then the most trainers.

    Returns:
        Tasks per machine, or None if they do not fit.
    """
    tables = [_empty_table(totals)]
    steps: list[list[Step]] = []
    for machine_steps in _steps_of_machines(room, totals, order):
        if _fits(tables[-1], totals):
            break
        steps.append(machine_steps)
        tables.append(_add_machine(tables[-1], machine_steps, totals.samplers))
    if not _fits(tables[-1], totals):
        return None
    return _walk_back(tables, steps, totals, order, samplers_per_trainer)


def can_fit(cluster: Cluster, job: Job) -> bool:
    """Whether the job has a placement on the machines."""
    room, totals = Room.of(cluster, job), totals_of(job)
    table = _empty_table(totals)
    for machine_steps in _steps_of_machines(room, totals, np.arange(len(room.free))):
        if _fits(table, totals):
            break
        table = _add_machine(table, machine_steps, totals.samplers)
    return not (room.free < 0).any() and _fits(table, totals)


def most_samplers(room: Room, totals: Totals) -> np.ndarray:
    """Most samplers, up to all, that fit next to each number of trainers and servers.

    Returns:
        Shape (trainers + 1, servers + 1); negative where trainers and servers alone do not fit.
    """
    table = _empty_table(totals)
    for machine_steps in _steps_of_machines(room, totals, np.arange(len(room.free))):
        table = _add_machine(table, machine_steps, totals.samplers)
    return table


def _slack(capacities: np.ndarray) -> np.ndarray:
    slack: np.ndarray = _ROUNDING * np.maximum(capacities, 1.0)
    return slack


def _empty_table(totals: Totals) -> np.ndarray:
    table = np.full((totals.trainers + 1, totals.servers + 1), _NEVER, dtype=np.int32)
    table[0, 0] = 0
    return table


def _fits(table: np.ndarray, totals: Totals) -> bool:
    return bool(table[-1, -1] >= totals.samplers)


def _steps_of_machines(room: Room, totals: Totals, order: np.ndarray) -> Iterator[list[Step]]:
    # Equal machines share one result.
    known: dict[bytes, list[Step]] = {}
    for machine in order:
        free = room.free[machine]
        key = free.tobytes()
        if key not in known:
            known[key] = _steps_of(room, free, totals)
        yield known[key]


def _steps_of(room: Room, free: np.ndarray, totals: Totals) -> list[Step]:
    """All maximal task sets of one machine."""
    if (free < 0).any():
        return [Step(0, 0, 0)]
    trainers = np.arange(1 + _whole(num_fitting(free, room.trainer), totals.trainers))
    servers = np.arange(1 + _whole(num_fitting(free, room.server), totals.servers))
    left = free - trainers[:, None, None] * room.trainer - servers[None, :, None] * room.server
    samplers = np.floor(np.clip(num_fitting(left, room.sampler), -1, totals.samplers)).astype(int)
    grown = np.pad(samplers, ((0, 1), (0, 1)), constant_values=-1)
    # Drop sets that allow another trainer or server with the same number of samplers.
    final = (samplers >= 0) & (grown[1:, :-1] < samplers) & (grown[:-1, 1:] < samplers)
    return [
        Step(int(w), int(p), int(samplers[w, p])) for w, p in zip(*np.nonzero(final), strict=True)
    ]


def _whole(fits: np.ndarray | float, most: int) -> int:
    return int(np.clip(fits, 0, most))


def _add_machine(table: np.ndarray, steps: list[Step], all_samplers: int) -> np.ndarray:
    """Extend the table from the first i machines to the first i + 1."""
    most_w, most_p = max(step.trainers for step in steps), max(step.servers for step in steps)
    # A step may hold more trainers than needed: padding rows repeat row 0.
    rows, columns = table.shape
    padded = np.empty((most_w + rows, most_p + columns), dtype=np.int32)
    padded[most_w:, most_p:] = table
    padded[:most_w, most_p:] = table[0]
    padded[:, :most_p] = padded[:, most_p : most_p + 1]
    result, candidate = np.full_like(table, _NEVER), np.empty_like(table)
    for trainers, servers, samplers in steps:
        before = padded[most_w - trainers :, most_p - servers :][:rows, :columns]
        np.add(before, np.int32(samplers), out=candidate)
        np.maximum(result, candidate, out=result)
    np.minimum(result, np.int32(all_samplers), out=result)
    return result


def _walk_back(
    tables: list[np.ndarray],
    steps: list[list[Step]],
    totals: Totals,
    order: np.ndarray,
    samplers_per_trainer: int,
) -> Counts:
    counts = np.zeros((3, len(order)), dtype=np.int64)
    samplers, trainers, servers = totals
    for i in range(len(steps) - 1, -1, -1):
        best: tuple[tuple[int, int, int], tuple[int, int, int]] | None = None
        for step in steps[i]:
            w, p = min(step.trainers, trainers), min(step.servers, servers)
            at_least = max(0, samplers - int(tables[i][trainers - w, servers - p]))
            at_most = min(step.samplers, samplers)
            if at_least > at_most:
                continue
            s = min(max(w * samplers_per_trainer, at_least), at_most)
            rank = (min(s, w * samplers_per_trainer), w, -p)
            if best is None or rank > best[0]:
                best = (rank, (s, w, p))
        if best is None:
            raise AssertionError("the packing table is inconsistent; this is a bug")
        s, w, p = best[1]
        counts[:, order[i]] = s, w, p
        samplers, trainers, servers = samplers - s, trainers - w, servers - p
    return Counts(*counts)
