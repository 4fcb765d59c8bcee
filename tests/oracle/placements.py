"""All placements of a small job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

from headrace.core.errors import InfeasibleError
from headrace.core.placement import Placement
from headrace.core.profile import Problem


def all_placements(problem: Problem) -> Iterator[Placement]:
    """All feasible placements, but for the names of equal tasks."""
    cluster, job, _ = problem
    machines = range(cluster.num_machines)
    samplers = combinations_with_replacement(machines, job.samplers_per_trainer)
    teams = list(product(machines, samplers))
    servers = list(combinations_with_replacement(machines, job.num_servers))
    for chosen in combinations_with_replacement(teams, job.trainers):
        for hosts in servers:
            placement = Placement(
                samplers=tuple(m for _, own in chosen for m in own),
                trainers=tuple(trainer for trainer, _ in chosen),
                servers=hosts,
            )
            try:
                placement.check(cluster, job)
            except InfeasibleError:
                continue
            yield placement
