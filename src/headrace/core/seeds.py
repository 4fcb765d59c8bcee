"""Seed mix: how many seeds each sampler takes from each graph partition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.job import Job
from headrace.core.units import Count, Number
from headrace.core.values import Value

SeedMixName = Literal["uniform", "local-first"]
"""Seed assignment: from all graph partitions in proportion, or from the local one first."""

Positive = Annotated[Number, Field(ge=0)]


class SeedRow(Value):
    """Seeds of a group of samplers, identical for each of them.

    Attributes:
        samplers: Indices into the placement's `samplers`.
        parts: Seeds per iteration, by the machine that hosts their graph partition.
        others: Seeds per iteration from every partition that is not listed.
    """

    samplers: tuple[Annotated[Count, Field(ge=0)], ...] = Field(min_length=1)
    parts: Mapping[str, Positive] = Field(default_factory=dict)
    others: Positive = 0.0


class SeedMix(Value):
    """Seeds per iteration that each sampler takes from each graph partition.

    Rows are sparse: samplers of one machine usually have equal entries, most of them 0. Fractions
    are averages over an epoch.

    Attributes:
        rows: Each sampler is in exactly one row.
    """

    rows: tuple[SeedRow, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _every_sampler_once(self) -> Self:
        samplers = sorted(sampler for row in self.rows for sampler in row.samplers)
        if samplers != list(range(len(samplers))):
            raise SpecError(
                f"the rows of the seed mix list {len(samplers)} samplers, but not each of "
                f"0 to {len(samplers) - 1} once",
                "name every sampler in exactly one row",
                at=("rows",),
            )
        return self

    @property
    def num_samplers(self) -> int:
        """Number of samplers of all rows."""
        return sum(len(row.samplers) for row in self.rows)

    @classmethod
    def of(cls, seeds: np.ndarray, cluster: Cluster) -> SeedMix:
        """Encode an array of shape (num_samplers, num_parts) without loss."""
        names = [machine.name for machine in cluster.hosts]
        members: dict[bytes, list[int]] = {}
        for sampler, row in enumerate(seeds):
            members.setdefault(row.tobytes(), []).append(sampler)
        rows = []
        for samplers in members.values():
            row = seeds[samplers[0]]
            values, counts = np.unique(row, return_counts=True)
            others = float(values[np.argmax(counts)])
            named = {names[part]: float(row[part]) for part in np.flatnonzero(row != others)}
            rows.append(SeedRow(samplers=tuple(samplers), parts=named, others=others))
        return cls(rows=tuple(rows))

    def array(self, cluster: Cluster) -> np.ndarray:
        """Seeds per iteration, shape (num_samplers, num_parts)."""
        index = {machine.name: part for part, machine in enumerate(cluster.hosts)}
        seeds = np.empty((self.num_samplers, cluster.num_machines))
        for i, each in enumerate(self.rows):
            row = np.full(cluster.num_machines, each.others)
            for name, num in each.parts.items():
                if name not in index:
                    raise SpecError(
                        f"the seed mix names machine {name!r}, which the cluster does not have",
                        "name machines of the cluster",
                        at=("rows", i, "parts", name),
                    )
                row[index[name]] = num
            seeds[list(each.samplers)] = row
        return seeds


def uniform_seeds(job: Job, num_parts: int) -> np.ndarray:
    """Uniform seeds per iteration, shape (num_samplers, num_parts): the paper's model."""
    return np.full(
        (job.num_samplers, num_parts), job.batch_size / job.samplers_per_trainer / num_parts
    )
