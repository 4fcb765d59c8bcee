"""`ifs`: the first feasible placement (DGTP, Alg. 2)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.planner.methods._base import PlacementMethod
from headrace.planner.methods.bin_packing import Room, give_identities, pack, totals_of
from headrace.planner.methods.infeasibility import check_stores_fit, explain


class Ifs(PlacementMethod):
    """Fills machines in random order until all tasks are placed.

    Uses a dynamic programme over counts (see `bin_packing`), so it finds a placement whenever one
    exists. It ignores the network and is meant as a start for searches.
    """

    name: ClassVar[str] = "ifs"

    def place(self, problem: Problem, seed: int) -> Placement:
        """See `PlacementMethod.place`; `seed` orders the machines (Alg. 2, line 1)."""
        cluster, job, _ = problem
        check_stores_fit(cluster, job)
        order = np.random.default_rng(seed).permutation(cluster.num_machines)
        counts = pack(Room.of(cluster, job), totals_of(job), order, job.samplers_per_trainer)
        if counts is None:
            raise explain(cluster, job)
        trainers, samplers = give_identities(counts, order, job.samplers_per_trainer)
        servers = np.repeat(order, counts.servers[order])
        return Placement(
            samplers=tuple(samplers.ravel().tolist()),
            trainers=tuple(trainers.tolist()),
            servers=tuple(servers.tolist()),
        )
