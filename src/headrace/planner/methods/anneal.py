"""`anneal`: simulated annealing on NIC loads from several starts; the default method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.planner.cost.lower_bound import load_bound
from headrace.planner.cost.nic_loads import LoadModel, build_load_model, port_loads
from headrace.planner.methods._base import PlacementMethod
from headrace.planner.methods.anneal_kernel import anneal, start_search
from headrace.planner.methods.by_speed import Found, search_by_speed
from headrace.planner.methods.colocate import Colocate
from headrace.planner.methods.ifs import Ifs
from headrace.planner.methods.relaxed_start import relaxed_placement

TEMPERATURES = (10.0, 3.0, 1.0, 0.3, 0.1)
"""Initial temperatures times the number of machines.

Measured on ten draws of each of the paper's settings: high ones are best at 2 to 16 machines, the
lowest at 64 machines with tight resources and at 1,024 machines; none is best everywhere.
"""

COOLING = 0.01
"""Final temperature relative to the initial one."""

DEFAULT_STEPS = 30_000
"""Steps per search; at the paper's sizes 10,000 reach the best known load."""

STEPS_PER_TASK = 50
"""Minimum steps per task for large jobs; 1,024 machines need 150 for a gap of 0.1 %."""

_FEW_SAMPLERS = 100
"""Up to this number, searches use all starts to give simulations more candidates: placements of
equal load differ by up to 1 % in makespan."""


@dataclass(frozen=True)
class Candidate:
    """A placement and its largest NIC load in seconds per iteration."""

    placement: Placement
    load_s: float


def shortlist(
    problem: Problem,
    *,
    seed: int,
    steps: int | None = None,
    local_seeds: bool = False,
    most: int = 4,
) -> tuple[list[Candidate], float]:
    """Search from `colocate`, `ifs` and the relaxed lower bound, at several temperatures.

    By default `steps` per search depends on the job size. With `local_seeds`, samplers use seeds of
    their own machine first.

    Returns:
        At most `most` distinct placements, smallest load first, and a lower bound of the load.

    Raises:
        InfeasibleError: The job does not fit.
    """
    job = problem.job
    model = build_load_model(problem, local_seeds=local_seeds)
    bound_s = load_bound(model)
    relaxed = relaxed_placement(model, job, bound_s)
    starts = [relaxed] if relaxed is not None else []
    if relaxed is None or job.num_samplers <= _FEW_SAMPLERS:
        starts += [method.place(problem, seed) for method in (Colocate(), Ifs())]
    scale = 1.0 / bound_s if bound_s > 0 else 1.0
    tasks = [_machines(placement) for placement in starts]
    if steps is None:
        steps = max(DEFAULT_STEPS, STEPS_PER_TASK * len(tasks[0]))
    found: dict[Placement, float] = {}
    for number, (start, temperature) in enumerate(
        (start, temperature) for start in tasks for temperature in TEMPERATURES
    ):
        search = start_search(model, start, seed * 64 + number)
        first = temperature / problem.cluster.num_machines
        anneal(model, search, steps, scale, first, first * COOLING)
        placement = _placement(job, search.best)
        found[placement] = _load(model, placement)
    for placement in starts:
        found[placement] = _load(model, placement)
    ranked = sorted(found.items(), key=lambda item: item[1])
    return [Candidate(placement, load_s) for placement, load_s in ranked[:most]], bound_s


def _machines(placement: Placement) -> np.ndarray:
    return np.array(placement.samplers + placement.trainers + placement.servers, dtype=np.int64)


def _placement(job: Job, machines: np.ndarray) -> Placement:
    names = [int(m) for m in machines]
    last_sampler, last_trainer = job.num_samplers, job.num_samplers + job.trainers
    return Placement(
        samplers=tuple(names[:last_sampler]),
        trainers=tuple(names[last_sampler:last_trainer]),
        servers=tuple(names[last_trainer:]),
    )


def _load(model: LoadModel, placement: Placement) -> float:
    incoming, outgoing = port_loads(model, placement)
    return float(max(incoming.max(), outgoing.max()))


class Anneal(PlacementMethod):
    """Minimises the objective by simulated annealing of NIC loads in classes by speed."""

    name: ClassVar[str] = "anneal"

    def place(self, problem: Problem, seed: int) -> Placement:
        """Return the placement with the smallest objective; see `PlacementMethod.place`."""

        def search(limited: Problem) -> Found:
            candidates, _ = shortlist(limited, seed=seed)
            return Found([each.placement for each in candidates], 0.0)

        return search_by_speed(problem, search, local_seeds=False).placements[0]
