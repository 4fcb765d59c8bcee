"""`etp`: exploratory task placement, the paper's search (DGTP, Alg. 3), kept as a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from headrace.core.job import Job, Role
from headrace.core.placement import Placement, demand_vector, resource_names
from headrace.core.profile import Problem
from headrace.planner.methods._base import PlacementMethod
from headrace.planner.methods.critical_path import PATH_ITERATIONS, CriticalPath
from headrace.planner.methods.etp_kernel import BEST_S, FIRST_COST, MIN_COST, Chain, walk
from headrace.planner.methods.ifs import Ifs
from headrace.simulator import Rehearser

BETAS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Costs are relative to the first one. The paper's beta, 0.1, has no unit: try five decades."""

STEPS = 10_000
"""The paper's search budget (section VI-A)."""

GAMMA = 0.1
"""Placements within this relative distance of the smallest cost are simulated (section V-B)."""

RELAXATION = 1.0
"""The paper's violation factor: capacities are doubled during the search (eq. 28)."""


@dataclass(frozen=True)
class EtpResult:
    """Result of one search.

    Attributes:
        placement: Feasible placement with the smallest simulated makespan.
        makespan_s: That makespan, under `oes` with an unlimited window.
        num_simulated: Simulated placements.
        num_hopeless: Placements not simulated because a NIC bound exceeds the best makespan.
        min_cost: Smallest critical path of a feasible placement, in seconds.
    """

    placement: Placement
    makespan_s: float
    num_simulated: int
    num_hopeless: int
    min_cost: float


class Etp(PlacementMethod):
    """Best placement of Alg. 3 over all betas of `BETAS`, with `steps` transitions each."""

    name: ClassVar[str] = "etp"

    def __init__(self, steps: int | None = None) -> None:
        self._steps = steps

    def place(self, problem: Problem, seed: int) -> Placement:
        """See `PlacementMethod.place`."""
        steps = STEPS if self._steps is None else self._steps
        found = etp_betas(problem, steps=steps, seed=seed)
        return min(found.values(), key=lambda result: result.makespan_s).placement


def etp_betas(
    problem: Problem,
    *,
    betas: Sequence[float] = BETAS,
    steps: int = STEPS,
    seed: int,
    num_iterations: int = PATH_ITERATIONS,
    rehearse_all: bool = False,
) -> dict[float, EtpResult]:
    """Search placements with a Markov chain per beta (Alg. 3, with our corrections).

    A chain starts at `ifs`, moves one random task at a time to a random machine with room under
    relaxed capacities, and accepts with probability exp(-beta (cost' - cost) / first cost), where
    costs are critical paths. Feasible placements within `GAMMA` of the smallest feasible cost are
    simulated under `oes` with an unlimited window and the uniform seed mix, as in the paper. All
    placements use the same volumes. `rehearse_all` also simulates placements that cannot be the
    best; the result is the same.

    Raises:
        InfeasibleError: The job does not fit.
    """
    first = Ifs().place(problem, seed)
    path = CriticalPath(problem, num_iterations=num_iterations, seed=seed)
    rehearser = Rehearser(problem, num_iterations=num_iterations, window=0, seed=seed)
    cost = path.length_s(first)
    return {
        beta: _search(
            _chain_at(first, problem, cost, seed, steps),
            path,
            rehearser,
            problem.job,
            beta,
            steps,
            rehearse_all,
        )
        for beta in betas
    }


def _search(
    chain: Chain,
    path: CriticalPath,
    rehearser: Rehearser,
    job: Job,
    beta: float,
    steps: int,
    rehearse_all: bool,
) -> EtpResult:
    best, best_s = chain.machines.copy(), np.inf
    # The initial placement is always simulated.
    while walk(chain, path.model, path.scratch, steps, float(beta), GAMMA, RELAXATION):
        makespan_s = rehearser.makespan_on_s(chain.machines, "oes")
        if makespan_s < best_s:
            best_s = makespan_s
            np.copyto(best, chain.machines)
            chain.values[BEST_S] = np.inf if rehearse_all else best_s
    samplers, trainers, servers = np.split(
        best, [job.num_samplers, job.num_samplers + job.trainers]
    )
    return EtpResult(
        placement=Placement(
            samplers=tuple(samplers.tolist()),
            trainers=tuple(trainers.tolist()),
            servers=tuple(servers.tolist()),
        ),
        makespan_s=float(best_s),
        num_simulated=int(chain.num_seen[0] - chain.num_hopeless[0]),
        num_hopeless=int(chain.num_hopeless[0]),
        min_cost=float(chain.values[MIN_COST]),
    )


def _chain_at(placement: Placement, problem: Problem, cost: float, seed: int, steps: int) -> Chain:
    cluster, job, _ = problem
    names = resource_names(cluster, job)
    num_machines = cluster.num_machines
    by_role = (placement.samplers, placement.trainers, placement.servers)
    values = np.full(4, cost)
    # If all costs are 0, every placement is accepted.
    values[FIRST_COST] = cost or 1.0
    values[BEST_S] = np.inf
    return Chain(
        machines=np.concatenate([np.array(machines, dtype=np.int32) for machines in by_role]),
        role=np.repeat(np.arange(3, dtype=np.int32), [len(machines) for machines in by_role]),
        counts=np.array(
            [np.bincount(np.array(m, dtype=np.int64), minlength=num_machines) for m in by_role]
        ),
        demands=np.array(
            [demand_vector(job, role, names) for role in (Role.SAMPLER, Role.TRAINER, Role.SERVER)]
        ),
        store=demand_vector(job, Role.STORE, names),
        capacities=cluster.capacities(names),
        violation=np.zeros(num_machines),
        avail=np.zeros(num_machines, dtype=np.int32),
        draws=np.random.SeedSequence(seed).generate_state(1, np.uint64),
        step=np.zeros(1, dtype=np.int64),
        seen=np.empty((steps + 1, sum(map(len, by_role))), dtype=np.int32),
        seen_at=np.full(2 << int(steps + 1).bit_length(), -1, dtype=np.int32),
        num_seen=np.zeros(1, dtype=np.int64),
        num_hopeless=np.zeros(1, dtype=np.int64),
        values=values,
    )
