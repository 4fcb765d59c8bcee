"""Local-first seed mix: samplers use seeds of their own machine first."""

from __future__ import annotations

import numpy as np

from headrace.core.placement import Placement
from headrace.core.profile import Problem


def local_first_seeds(problem: Problem, placement: Placement) -> np.ndarray:
    """Assign seeds to samplers on the same machine first.

    Partitions hold equal numbers of training seeds, and each seed is used once per epoch, so all
    partitions are consumed at the same rate. Samplers that need more seeds than their partition has
    take them from the other partitions in proportion to what is left (owner-compute rule of
    DistDGLv2).

    Returns:
        Seeds per iteration, shape (num_samplers, num_parts).
    """
    job, num_parts = problem.job, problem.cluster.num_machines
    wanted = job.batch_size / job.samplers_per_trainer
    machines = np.array(placement.samplers, dtype=np.int64)
    on_machine = np.bincount(machines, minlength=num_parts)
    supply = wanted * job.num_samplers / num_parts
    local = np.minimum(supply, wanted * on_machine)
    spare = supply - local
    missing = wanted * on_machine - local
    shares = spare / spare.sum() if spare.sum() > 0 else spare
    per_machine = np.diag(local) + missing[:, None] * shares[None, :]
    seeds: np.ndarray = per_machine[machines] / on_machine[machines][:, None]
    return seeds
