"""What was decided: placement, network policy and which seeds every sampler takes."""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from pydantic import Field, model_validator

from headrace.core.errors import SpecError
from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.values import Value


class SeedMix(Value):
    """Seeds per iteration that each sampler takes from each graph part.

    Attributes:
        seeds: Row = sampler, column = part; fractions are averages over an epoch.
    """

    seeds: tuple[tuple[float, ...], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_rectangular(self) -> Self:
        num_parts = len(self.seeds[0])
        for s, row in enumerate(self.seeds):
            if not row or len(row) != num_parts or min(row) < 0:
                raise SpecError(
                    f"sampler {s} of {len(self.seeds)} has the seeds {list(row)}",
                    "give every sampler one number >= 0 per graph part",
                    at=("seeds", s),
                )
        return self

    def array(self) -> np.ndarray:
        """Shape (num_samplers, num_parts)."""
        return np.array(self.seeds, dtype=np.float64)


def uniform_seeds(job: Job, num_parts: int) -> np.ndarray:
    """Every sampler takes its seeds from all parts alike: the paper's model.

    Returns:
        Seeds per iteration, shape (num_samplers, num_parts).
    """
    return np.full(
        (job.num_samplers, num_parts), job.batch_size / job.samplers_per_trainer / num_parts
    )


class Plan(Value):
    """A decision, with what it was decided for.

    Attributes:
        cluster_fingerprint: Of the cluster it was made for.
        job_fingerprint: Of the job.
        profile_fingerprint: Of the profile.
        placement: Where every task runs.
        policy: Name of the flow policy.
        seed_mix: Which seeds each sampler takes; uniform over all parts if absent.
    """

    version: Literal[1] = 1
    cluster_fingerprint: str
    job_fingerprint: str
    profile_fingerprint: str
    placement: Placement
    policy: str
    seed_mix: SeedMix | None = None
