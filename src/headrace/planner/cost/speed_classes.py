"""Classes of placements by their slowest machines, so that a search sees computing.

The objective grows with the slowest sampler, trainer and server, and with the largest NIC load. A
class of placements limits the task times of each role: slower machines may not host the role. The
limits fix the compute terms of the objective, so only NIC loads are left to minimise within a
class. Every placement belongs to the class of its own slowest machines, so the smallest bound of
all classes is a lower bound of the objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from headrace.core.job import UNLIMITED_WINDOW, Role, Sync
from headrace.core.profile import Problem
from headrace.planner.cost.lower_bound import INFEASIBLE_S, load_bound, network_model

_ROLES = (Role.SAMPLER, Role.TRAINER, Role.SERVER)

_EQUAL = 1e-9
"""Relative difference below which two bounds are equal."""


@dataclass(frozen=True)
class SpeedClass:
    """Placements whose slowest tasks are within limits.

    Attributes:
        problem: The problem, in which slower machines cannot host a role.
        limits_s: Longest task time per role.
        bound_s: Lower bound of the objective from task times and NIC loads.
    """

    problem: Problem
    limits_s: Mapping[Role, float]
    bound_s: float

    def contains(self, other: SpeedClass) -> bool:
        """Whether this class allows all that another one does."""
        return all(self.limits_s[role] >= limit_s for role, limit_s in other.limits_s.items())


def speed_classes(problem: Problem, *, local_seeds: bool) -> list[SpeedClass]:
    """All classes that may have a placement, smallest bound first.

    If there is none, the job does not fit, and the only class is that without limits.
    """
    times_s = _times_s(problem)
    found = []
    for combination in product(*(sorted(set(by_kind.values())) for by_kind in times_s.values())):
        limits_s = dict(zip(times_s, combination, strict=True))
        limited = _limit(problem, times_s, limits_s)
        compute_s = compute_bound_s(problem, limits_s)
        bound_s = load_bound(network_model(limited, local_seeds=local_seeds), above=compute_s)
        found.append(SpeedClass(limited, limits_s, bound_s))
    possible = [each for each in found if each.bound_s < INFEASIBLE_S] or found[-1:]
    # Of classes with equal bounds, the largest one comes first: it has the most placements.
    most_s = {role: max(by_kind.values()) for role, by_kind in times_s.items()}
    return sorted(
        possible,
        key=lambda each: (
            round(each.bound_s / max(possible[0].bound_s, 1e-12) / _EQUAL),
            sum(limit_s < most_s[role] for role, limit_s in each.limits_s.items()),
            [-limit_s for limit_s in each.limits_s.values()],
        ),
    )


def compute_bound_s(problem: Problem, limits_s: Mapping[Role, float] | None = None) -> float:
    """Lower bound of the objective from task times alone.

    With `limits_s`, the slowest tasks of these roles take that long; else all are on the fastest
    machines.
    """
    cluster, job, profile = problem
    kinds = {machine.kind for machine in cluster.hosts}
    slowest_s = limits_s or {
        role: min(by_kind.values()) for role, by_kind in _times_s(problem).items()
    }
    store_s = max(profile.task_time(Role.STORE, kind).mean for kind in kinds)
    store_s *= profile.seed_scale(Role.STORE, job)
    ring_s = min(profile.task_time(Role.RING, kind).mean for kind in kinds)
    sampler_s, trainer_s = slowest_s[Role.SAMPLER], slowest_s[Role.TRAINER]
    cycle_s = trainer_s
    if job.sync is Sync.PS:
        cycle_s += slowest_s[Role.SERVER]
    elif job.trainers > 1:
        cycle_s += 2 * (job.trainers - 1) * ring_s
    latency_s = max(store_s + sampler_s, sampler_s + trainer_s)
    waiting_s = 0.0 if job.window == UNLIMITED_WINDOW else latency_s / job.window
    return max(store_s, sampler_s, cycle_s, waiting_s)


def time_bound_s(problem: Problem, *, local_seeds: bool) -> float:
    """Lower bound of the objective over all placements; the job must fit the cluster."""
    return speed_classes(problem, local_seeds=local_seeds)[0].bound_s


def machine_times_s(problem: Problem, role: Role) -> np.ndarray:
    """Task time of a role on each machine."""
    by_kind = _times_s(problem)[role]
    return np.array([by_kind[machine.kind] for machine in problem.cluster.hosts])


def _times_s(problem: Problem) -> dict[Role, dict[str, float]]:
    """Task time by role and machine class."""
    cluster, job, profile = problem
    roles = _ROLES if job.num_servers else _ROLES[:2]
    kinds = sorted({machine.kind for machine in cluster.hosts})
    return {
        role: {
            kind: profile.task_time(role, kind).mean * profile.seed_scale(role, job)
            for kind in kinds
        }
        for role in roles
    }


def _limit(
    problem: Problem, times_s: Mapping[Role, Mapping[str, float]], limits_s: Mapping[Role, float]
) -> Problem:
    """The problem with a resource per limited role, which slower machines lack."""
    cluster, job, profile = problem
    limited = [role for role, by_kind in times_s.items() if max(by_kind.values()) > limits_s[role]]
    if not limited:
        return problem
    machines = tuple(
        machine.model_copy(
            update={
                "resources": {
                    **machine.resources,
                    **{
                        _resource(role): float(job.num_samplers + job.trainers + job.num_servers)
                        for role in limited
                        if times_s[role][machine.kind] <= limits_s[role]
                    },
                }
            }
        )
        for machine in cluster.machines
    )
    demands = {
        role: {**job.demand(role), _resource(role): 1.0} if role in limited else job.demand(role)
        for role in Role
        if role in limited or role in job.demands
    }
    return Problem(
        cluster.model_copy(update={"machines": machines}),
        job.model_copy(update={"demands": demands}),
        profile,
    )


def _resource(role: Role) -> str:
    return f"fast enough for a {role.value}"
