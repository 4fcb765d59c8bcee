"""Which seeds every sampler takes: those of its own machine's part first."""

from __future__ import annotations

import numpy as np

from headrace.core.job import Job
from headrace.core.placement import Placement


def local_first_seeds(job: Job, num_parts: int, placement: Placement) -> np.ndarray:
    """Give samplers the seeds that lie on their machine, as far as both reach.

    Parts hold equally many training seeds, and every seed is taken once per epoch, so a part is
    used up at the same pace whatever the placement. Samplers that want more than their part has
    take from the parts that are left over, from all of them in proportion (the owner-compute rule
    of DistDGLv2 inside the planner).

    Args:
        job: The job.
        num_parts: Graph parts, one per machine.
        placement: Where the samplers run.

    Returns:
        Seeds per iteration, shape (num_samplers, num_parts).
    """
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
