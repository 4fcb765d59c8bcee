"""Search the classes of placements by speed with a method that minimises NIC loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from headrace.core.errors import InfeasibleError
from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.planner.cost.objective import Objective, evaluate
from headrace.planner.cost.seed_mix import Shares, seeds_of
from headrace.planner.cost.shares import best_shares, shared_time_s
from headrace.planner.cost.speed_classes import SpeedClass, speed_classes
from headrace.planner.methods.colocate import Colocate

_WORTH_SEARCHING = 1e-3
"""Smallest relative gain of another class of placements for which it is searched."""

_MOST_MOVES = 1000
"""Most placements whose objective is computed to improve one, at 0.3 ms each."""

_MOST_SHARED_MOVES = 400
"""The same for an objective with batch shares, at 2 ms each."""

_SMALLEST_GAIN = 1e-6
"""Smallest relative gain of the objective by a move."""


@dataclass(frozen=True)
class Found:
    """Result of a search: placements, best first, a lower bound of the objective, rounds."""

    placements: list[Placement]
    bound_s: float
    rounds: int = 1


def search_by_speed(
    problem: Problem, search: Callable[[Problem], Found], *, local_seeds: bool
) -> Found:
    """Search the classes whose bound is below the best objective so far.

    `search` minimises NIC loads; its bound is one of these loads. Where NICs limit the best
    placement of a class, fewer machines cannot help.

    Raises:
        InfeasibleError: The job does not fit.
    """
    times_s: dict[Placement, float] = {}
    best_s, bound_s, num_rounds = np.inf, np.inf, 1
    network_bound: list[SpeedClass] = []
    for each in speed_classes(problem, local_seeds=local_seeds):
        if each.bound_s >= best_s * (1 - _WORTH_SEARCHING) or any(
            other.contains(each) for other in network_bound
        ):
            bound_s = min(bound_s, each.bound_s)
            continue
        try:
            found = search(each.problem)
        except InfeasibleError:
            # The bound ignores some constraints, so a class may have no placement.
            bound_s = min(bound_s, each.bound_s)
            continue
        bound_s = min(bound_s, max(each.bound_s, found.bound_s))
        num_rounds = max(num_rounds, found.rounds)
        objectives = {
            placement: _objective(problem, placement, local_seeds) for placement in found.placements
        }
        times_s |= {placement: objective.time_s for placement, objective in objectives.items()}
        best = min(objectives, key=lambda placement: objectives[placement].time_s)
        if objectives[best].limit == "nic":
            network_bound.append(each)
        elif objectives[best].time_s > each.bound_s * (1 + _WORTH_SEARCHING):
            # NIC loads alone do not show how long gradients, parameters and batches take, which
            # adds to task times in the parameter cycle and between stages.
            better = improved(
                problem,
                best,
                lambda other: _objective(problem, other, local_seeds).time_s,
                _MOST_MOVES,
                _SMALLEST_GAIN,
            )
            times_s[better] = _objective(problem, better, local_seeds).time_s
        best_s = min(best_s, *times_s.values())
    if not times_s:
        # Raises an error about the resources of the user's machines.
        return search(problem)
    ranked = sorted(times_s, key=lambda placement: times_s[placement])
    return Found(ranked, bound_s, num_rounds)


def search_shares(
    problem: Problem, placements: Sequence[Placement], *, local_seeds: bool
) -> list[tuple[Placement, Shares]]:
    """Placements with unequal batch shares, best first; none if equal shares are best.

    With shares a slow machine may host a trainer that has few seeds, so placements for equal shares
    and some others are improved by the objective with shares.
    """
    starts = [*placements]
    with suppress(InfeasibleError):
        starts.append(Colocate().place(problem, 0))
    found: dict[Placement, tuple[float, Shares]] = {}
    for start in dict.fromkeys(starts):
        better = improved(
            problem,
            start,
            lambda other: shared_time_s(problem, other, local_seeds=local_seeds),
            _MOST_SHARED_MOVES,
            _SMALLEST_GAIN,
        )
        for each in (start, better):
            placement = each.numbered_by_ring()
            if placement not in found:
                shares = best_shares(problem, placement, local_seeds=local_seeds)
                time_s = _objective(problem, placement, local_seeds, shares).time_s
                found[placement] = (time_s, shares)
    ranked = sorted(found, key=lambda placement: found[placement][0])
    return [(each, found[each][1]) for each in ranked if found[each][1] is not None]


def improved(
    problem: Problem,
    placement: Placement,
    measure: Callable[[Placement], float],
    most: int,
    smallest_gain: float,
) -> Placement:
    """Move tasks, pairs and trainers with their samplers as long as a measure decreases.

    At most `most` placements are measured; gains below `smallest_gain` (relative) do not count.
    """
    job = problem.job
    machines = list(placement.samplers + placement.trainers + placement.servers)
    if len(machines) ** 2 // 2 * problem.cluster.num_machines > most:
        return placement
    moves = list(product(_groups(job), range(problem.cluster.num_machines)))
    best = measure(placement)
    num_measured = 1
    has_moved = True
    while has_moved:
        has_moved = False
        for tasks, machine in moves:
            moved = [machine if task in tasks else own for task, own in enumerate(machines)]
            if moved == machines:
                continue
            other = Placement(
                samplers=tuple(moved[: job.num_samplers]),
                trainers=tuple(moved[job.num_samplers :][: job.trainers]),
                servers=tuple(moved[job.num_samplers + job.trainers :]),
            )
            try:
                other.check(problem.cluster, job)
            except InfeasibleError:
                continue
            if num_measured >= most:
                return placement
            measured = measure(other)
            num_measured += 1
            if measured < best * (1 - smallest_gain):
                placement, machines, best, has_moved = other, moved, measured, True
    return placement


def _groups(job: Job) -> list[frozenset[int]]:
    """Tasks to move together; numbered samplers, trainers, servers."""
    num_tasks = job.num_samplers + job.trainers + job.num_servers
    single = [frozenset({task}) for task in range(num_tasks)]
    pairs = [frozenset(pair) for pair in combinations(range(num_tasks), 2)]
    servers = range(job.num_samplers + job.trainers, num_tasks)
    teams = []
    for trainer in range(job.trainers):
        first = trainer * job.samplers_per_trainer
        own = range(first, first + job.samplers_per_trainer)
        teams.append(frozenset({job.num_samplers + trainer, *own}))
        teams.append(teams[-1] | set(servers))
    return list(dict.fromkeys([*single, *teams, *pairs]))


def _objective(
    problem: Problem, placement: Placement, local_seeds: bool, shares: Shares = None
) -> Objective:
    seeds = seeds_of(problem, placement, local_seeds=local_seeds, shares=shares)
    return evaluate(problem, placement, seeds)
