"""Every trainer beside its samplers, as far as resources allow (DistDGL's scheme)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.profile import Profile
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
    """Keeps trainers and their samplers on one machine where that is possible (DGTP, section VI).

    Trainers with all their samplers go, one by one, to the machine that could still take most of
    them. When no machine can, a trainer goes where most of its samplers fit beside it, its other
    samplers and the parameter servers to the machine with most room. Should this end with a task
    that fits nowhere, the last whole groups are taken back, as few as possible, and the rest is
    packed exactly: a placement is found whenever there is one.
    """

    name: ClassVar[str] = "colocate"

    def place(self, cluster: Cluster, job: Job, profile: Profile, seed: int) -> Placement:
        """See `PlacementMethod.place`; `seed` matters only where groups had to be taken back."""
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
    """A placement in the making; one row of `samplers` per trainer, short rows still miss some."""

    free: np.ndarray
    trainers: list[int] = field(default_factory=list)
    samplers: list[list[int]] = field(default_factory=list)
    servers: list[int] = field(default_factory=list)


def _place_groups(draft: _Draft, room: Room, job: Job) -> list[int]:
    """Place whole trainers with all their samplers while a machine can take one.

    Returns:
        The machine of every group placed.
    """
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
    """Place the other trainers, each with as many of its samplers as fit beside it."""

    def beside(free: np.ndarray) -> np.ndarray:
        """Samplers that fit beside one more trainer; negative where the trainer does not fit."""
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
    """Place samplers that are still missing, then the servers, each where most of its kind fit."""
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
    """The machine with most room; among equals the one given least so far, then the first."""
    candidates = np.flatnonzero(fits == fits.max())
    return int(candidates[np.argmin(taken[candidates])])


def _take_back(groups: list[int], room: Room, job: Job, seed: int) -> _Draft | None:
    """Keep as many of the first groups as leave room for all other tasks, packed exactly.

    Fewer groups never make the rest harder to pack, so the number is found by bisection; with none
    left this is `ifs`.
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
