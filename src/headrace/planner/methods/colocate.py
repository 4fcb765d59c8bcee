"""`colocate`: trainers on the machines of their samplers where possible (DistDGL's scheme)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.planner.methods._base import PlacementMethod
from headrace.planner.methods.bin_packing import (
    Room,
    Totals,
    give_identities,
    num_fitting,
    pack,
    totals_of,
)
from headrace.planner.methods.infeasibility import check_stores_fit, explain


class Colocate(PlacementMethod):
    """Keeps each trainer and its samplers on one machine where possible (DGTP, section VI).

    Complete groups of a trainer and its samplers go to the machine with room for the most groups.
    Other trainers go where most of their samplers fit; remaining samplers and parameter servers go
    to the machine with the most room. If a task does not fit, as few groups as possible are removed
    and all other tasks are packed exactly, so a placement is found whenever one exists.
    """

    name: ClassVar[str] = "colocate"

    def place(self, problem: Problem, seed: int) -> Placement:
        """See `PlacementMethod.place`; `seed` is used only if groups are removed."""
        cluster, job, _ = problem
        check_stores_fit(cluster, job)
        room = Room.of(cluster, job)
        draft = _Draft(room.free.copy())
        groups = _place_groups(draft, room, job)
        if not (_place_partial_groups(draft, room, job) and _place_rest(draft, room, job)):
            taken_back = _take_back(groups, room, job, seed)
            if taken_back is None:
                raise explain(cluster, job)
            draft = taken_back
        return Placement(
            samplers=tuple(machine for row in draft.samplers for machine in row),
            trainers=tuple(draft.trainers),
            servers=tuple(draft.servers),
        )


@dataclass
class _Draft:
    """Partial placement; one row of `samplers` per trainer, possibly incomplete."""

    free: np.ndarray
    trainers: list[int] = field(default_factory=list)
    samplers: list[list[int]] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)


def _place_groups(draft: _Draft, room: Room, job: Job) -> list[int]:
    """Place complete groups while one fits; return the machine of each group."""
    group = room.trainer + job.samplers_per_trainer * room.sampler
    fits = num_fitting(draft.free, group)
    taken = np.zeros(len(fits), dtype=np.int64)
    for _ in range(job.trainers):
        machine = _roomiest(fits, taken)
        if fits[machine] < 1:
            break
        draft.trainers.append(machine)
        draft.samplers.append([machine] * job.samplers_per_trainer)
        draft.free[machine] -= group
        fits[machine] = num_fitting(draft.free[machine], group)
        taken[machine] += 1
    return list(draft.trainers)


def _place_partial_groups(draft: _Draft, room: Room, job: Job) -> bool:
    """Place the other trainers, each with as many of its samplers as fit."""

    def beside(free: np.ndarray) -> np.ndarray:
        """Samplers that fit next to another trainer; negative if the trainer does not fit."""
        fits = num_fitting(free - room.trainer, room.sampler)
        whole: np.ndarray = np.clip(np.floor(fits), -1, job.samplers_per_trainer)
        return whole

    if len(draft.trainers) == job.trainers:
        return True
    samplers = beside(draft.free)
    taken = np.bincount(np.array(draft.trainers, dtype=np.int64), minlength=len(draft.free))
    for _ in range(job.trainers - len(draft.trainers)):
        machine = _roomiest(samplers, taken)
        if samplers[machine] < 0:
            return False
        num = int(samplers[machine])
        draft.trainers.append(machine)
        draft.samplers.append([machine] * num)
        draft.free[machine] -= room.trainer + num * room.sampler
        samplers[machine] = beside(draft.free[machine])
        taken[machine] += 1
    return True


def _place_rest(draft: _Draft, room: Room, job: Job) -> bool:
    """Place remaining samplers, then servers, where most tasks of the role fit."""
    waiting = [row for row in draft.samplers for _ in range(job.samplers_per_trainer - len(row))]
    for demand, rows in (
        (room.sampler, waiting),
        (room.server, [draft.servers] * job.num_servers),
    ):
        fits = num_fitting(draft.free, demand)
        taken = np.zeros(len(fits), dtype=np.int64)
        for row in rows:
            machine = _roomiest(fits, taken)
            if fits[machine] < 1:
                return False
            row.append(machine)
            draft.free[machine] -= demand
            fits[machine] = num_fitting(draft.free[machine], demand)
            taken[machine] += 1
    return True


def _roomiest(fits: np.ndarray, taken: np.ndarray) -> int:
    """Machine with the most room; ties go to the least used one, then the first."""
    candidates = np.flatnonzero(fits == fits.max())
    return int(candidates[np.argmin(taken[candidates])])


def _take_back(groups: list[int], room: Room, job: Job, seed: int) -> _Draft | None:
    """Keep as many of the first groups as allow packing all other tasks exactly.

    Fewer groups never make packing harder, so the number is found by bisection. With no groups this
    is `ifs`.
    """
    order = np.random.default_rng(seed).permutation(len(room.free))
    per_trainer = job.samplers_per_trainer
    group = room.trainer + per_trainer * room.sampler

    def keep(num: int) -> _Draft | None:
        num_here = np.bincount(np.array(groups[:num], dtype=np.int64), minlength=len(room.free))
        rest = job.trainers - num
        totals = Totals(rest * per_trainer, rest, totals_of(job).servers)
        counts = pack(room.without(num_here[:, None] * group), totals, order, per_trainer)
        if counts is None:
            return None
        trainers, samplers = give_identities(counts, order, per_trainer)
        return _Draft(
            free=room.free,
            trainers=[*groups[:num], *trainers.tolist()],
            samplers=[*([m] * per_trainer for m in groups[:num]), *samplers.tolist()],
            servers=np.repeat(order, counts.servers[order]).tolist(),
        )

    best = keep(0)
    if best is None:
        return None
    low, high = 0, len(groups)
    while low < high:
        middle = (low + high + 1) // 2
        found = keep(middle)
        if found is None:
            high = middle - 1
        else:
            low, best = middle, found
    return best
