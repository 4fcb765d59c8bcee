"""Seeds of each sampler: how many, by the trainers' shares, and from which partitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.placement import Placement
from headrace.core.profile import Problem

Shares = Sequence[int] | None
"""Seeds per iteration of each trainer; None if equal."""


def seeds_of(
    problem: Problem, placement: Placement, *, local_seeds: bool, shares: Shares = None
) -> np.ndarray:
    """Seeds per iteration, shape (num_samplers, num_parts): uniform, or local ones first."""
    if local_seeds:
        return local_first_seeds(problem, placement, shares)
    if shares is None:
        return problem.uniform_seeds
    job = problem.job
    # The same operations as in `Plan.seeds`, which must give the same bits.
    ratios = np.repeat(np.array(shares) / job.batch_size, job.samplers_per_trainer)
    seeds: np.ndarray = problem.uniform_seeds * ratios[:, None]
    return seeds


def local_first_seeds(problem: Problem, placement: Placement, shares: Shares = None) -> np.ndarray:
    """Assign seeds to samplers on the same machine first.

    Each seed is used once per epoch, so partitions are consumed in proportion to their training
    seeds, which are equally many if the profile does not know them. Samplers that need more seeds
    than their partition has take them from the other partitions in proportion to what is left
    (owner-compute rule of DistDGLv2).

    Returns:
        Seeds per iteration, shape (num_samplers, num_parts).
    """
    job, num_parts = problem.job, problem.cluster.num_machines
    wanted = _wanted(problem, shares)
    machines = np.array(placement.samplers, dtype=np.int64)
    if shares is None:
        # Without rounding errors of a sum.
        on_machine = wanted[0] * np.bincount(machines, minlength=num_parts)
        supply: float | np.ndarray = float(wanted[0] * job.num_samplers / num_parts)
    else:
        on_machine = np.bincount(machines, weights=wanted, minlength=num_parts)
        supply = float(wanted.sum() / num_parts)
    weights = problem.profile.part_weights(num_parts)
    if weights is not None:
        supply = wanted.sum() * weights
    local = np.minimum(supply, on_machine)
    spare = supply - local
    missing = on_machine - local
    parts = spare / spare.sum() if spare.sum() > 0 else spare
    per_machine = np.diag(local) + missing[:, None] * parts[None, :]
    if shares is None:
        counts = np.bincount(machines, minlength=num_parts)
        seeds: np.ndarray = per_machine[machines] / counts[machines][:, None]
        return seeds
    seeds = per_machine[machines] * (wanted / on_machine[machines])[:, None]
    return seeds


def _wanted(problem: Problem, shares: Shares) -> np.ndarray:
    """Seeds per iteration of each sampler."""
    job = problem.job
    if shares is None:
        return np.full(job.num_samplers, job.batch_size / job.samplers_per_trainer)
    per_sampler = np.array(shares, dtype=np.float64) / job.samplers_per_trainer
    return np.repeat(per_sampler, job.samplers_per_trainer)
