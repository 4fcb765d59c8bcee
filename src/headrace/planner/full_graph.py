"""Placement of a full-graph job: which part of the graph is on which machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from math import perm

import numpy as np

from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.full_graph import FullGraphFigures
from headrace.core.job import Role
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.costs import swap_volumes
from headrace.planner.methods.bin_packing import Room, num_fitting

METHOD = "full-graph"
"""Method name in plans of full-graph jobs."""

_MOST_TO_TRY = 5040
"""Placements up to which all are compared; beyond, parts are moved one by one or in pairs."""

_ABOUT_EQUAL = 0.05
"""Share of a trainer's mean nodes and edges by which merged parts may differ."""

Parts = tuple[int, ...]
"""Machine of each part."""


def shortlist(problem: Problem, most: int) -> list[Parts]:
    """Machines of the parts with the smallest estimated times per epoch, best first.

    Every part is on a machine of its own, with its trainer and that trainer's samplers.

    Raises:
        SpecError: The profile does not have the rows that parts exchange.
        InfeasibleError: There are not enough machines with room for a trainer.
    """
    able = _able_machines(problem)
    num = problem.job.trainers
    if len(able) < num:
        raise InfeasibleError(
            f"each of {num} trainers of a full-graph job needs a machine of its own, "
            f"{len(able)} of {problem.cluster.num_machines} have room for a trainer",
            "add machines, or use fewer trainers",
        )
    if not problem.job.swaps:
        raise SpecError(
            "the job does not have the rows that its layers exchange",
            "add `swaps` to the job file, or plan with the profile of a full-graph run",
        )
    estimate = _Estimate(problem)
    tried = permutations(able, num) if perm(len(able), num) <= _MOST_TO_TRY else ()
    times_s = {parts: estimate.time_s(parts) for parts in tried}
    if not times_s:
        times_s = _searched(estimate, able, num)
    # Of equal ones only the first, which leaves parts where their numbers are.
    first = {float(f"{times_s[parts]:.6g}"): parts for parts in sorted(times_s, reverse=True)}
    return [first[time_s] for time_s in sorted(first)[:most]]


def least_s(problem: Problem) -> float:
    """Smallest estimated time per epoch of a placement."""
    (best,) = shortlist(problem, 1)
    return _Estimate(problem).time_s(best)


def bound_s(problem: Problem) -> float:
    """Lower bound of the time per epoch over all placements."""
    return _Estimate(problem).bound_s


def placed(problem: Problem, parts: Parts) -> tuple[Problem, Placement]:
    """The problem and the placement with parts on these machines.

    Trainers have the numbers of their machines' order, as launchers assign ranks. The profile is
    changed to the order of the trainers.
    """
    order = sorted(range(len(parts)), key=lambda part: parts[part])
    trainers = tuple(parts[part] for part in order)
    profile = problem.profile.model_copy(update={"full_graph": problem.full_graph.ordered(order)})
    job = problem.job
    placement = Placement(
        samplers=tuple(m for m in trainers for _ in range(job.samplers_per_trainer)),
        trainers=trainers,
        servers=tuple(trainers[p % len(trainers)] for p in range(job.num_servers)),
    )
    return problem._replace(profile=profile), placement


def num_able(problem: Problem) -> int:
    """Machines with room for a trainer."""
    return len(_able_machines(problem))


def merged(figures: FullGraphFigures, num: int) -> tuple[int, ...]:
    """Trainer of each part, if several parts are of the same trainer.

    Two groups of parts are merged until `num` are left: those with the fewest nodes and edges, of
    about equal ones those that need the most rows of each other.
    """
    groups = [[part] for part in range(figures.num_trainers)]
    work = np.array(figures.nodes, dtype=np.float64) + np.array(figures.edges)
    rows = np.array(figures.halo, dtype=np.float64)
    rows += rows.T
    step = _ABOUT_EQUAL * float(work.sum()) / num

    def cost(pair: tuple[int, int]) -> tuple[float, float]:
        first, second = (groups[each] for each in pair)
        together = work[first].sum() + work[second].sum()
        return together // step if step else 0.0, -rows[np.ix_(first, second)].sum()

    while len(groups) > num:
        first, second = min(combinations(range(len(groups)), 2), key=cost)
        groups[first] += groups.pop(second)
    of = {part: number for number, group in enumerate(groups) for part in group}
    return tuple(of[part] for part in range(figures.num_trainers))


def _able_machines(problem: Problem) -> list[int]:
    room = Room.of(problem.cluster, problem.job)
    group = room.trainer + problem.job.samplers_per_trainer * room.sampler
    able: list[int] = np.flatnonzero(num_fitting(room.free, group) >= 1).tolist()
    return able


class _Estimate:
    """Time per epoch if every swap and layer takes as long as for the slowest trainer."""

    def __init__(self, problem: Problem) -> None:
        cluster, job, profile = problem
        num, figures = job.trainers, problem.full_graph
        volumes = np.zeros((len(job.swaps), num, num))
        volumes[:, ~np.eye(num, dtype=bool)] = swap_volumes(problem)
        sent, received = volumes.sum(axis=2), volumes.sum(axis=1)
        out, into = cluster.nic_out_bytes_per_s(), cluster.nic_in_bytes_per_s()
        # By swap, part and machine.
        swaps_s = np.maximum(sent[:, :, None] / out, received[:, :, None] / into)
        by_kind = {
            host.kind: profile.task_time(Role.TRAINER, host.kind).mean for host in cluster.hosts
        }
        speeds_s = np.array([by_kind[host.kind] for host in cluster.hosts])
        work_s = np.outer(figures.work_factors(), speeds_s)
        layers_s = np.multiply.outer(figures.time_shares(len(job.swaps)), work_s)
        first_s, during_s, after_s = layers_s[:1], layers_s[1::2], layers_s[2::2]
        self._stages_s = np.concatenate([first_s, np.maximum(swaps_s, during_s), after_s])

    @property
    def bound_s(self) -> float:
        """Lower bound of all estimates: every part is on the best machine for each stage."""
        return float(self._stages_s.min(axis=2).max(axis=1).sum())

    def time_s(self, parts: Sequence[int]) -> float:
        """Estimate for machines of the parts."""
        chosen = self._stages_s[:, np.arange(len(parts)), list(parts)]
        return float(chosen.max(axis=1).sum())


def _searched(estimate: _Estimate, able: Sequence[int], num: int) -> dict[Parts, float]:
    """Parts on the first machines, then moved as long as a move or an exchange is faster."""
    now: Parts = tuple(able[:num])
    times_s = {now: estimate.time_s(now)}
    while True:
        found = {parts: estimate.time_s(parts) for parts in _neighbours(now, able)}
        times_s |= found
        best = min(found, key=lambda parts: found[parts], default=now)
        if times_s[best] >= times_s[now] * (1 - 1e-9):
            return times_s
        now = best


def _neighbours(parts: Parts, able: Sequence[int]) -> Iterator[Parts]:
    """Placements that differ in one part, or in two that are exchanged."""
    for a in range(len(parts)):
        for machine in able:
            if machine == parts[a]:
                continue
            moved = list(parts)
            if machine in parts:
                moved[parts.index(machine)] = parts[a]
            moved[a] = machine
            yield tuple(moved)
