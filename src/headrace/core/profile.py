"""What was measured of a job, or what a stated synthetic model says instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from headrace.core.errors import SpecError
from headrace.core.job import Job, Role
from headrace.core.units import SECONDS_SCHEMA, Bytes, Count, Number, Seconds
from headrace.core.values import Spec

NUM_QUANTILES = 256
"""Resolution of a drawn distribution; the tail beyond 1/512 is the last quantile."""


class Variation(Spec):
    """How a positive quantity varies around its mean, as factors of mean 1.

    Either `peak_to_mean`, the paper's PMR (section VI-B), or measured `quantiles`: equally likely
    factors, normalised to mean 1. Without both the quantity is constant.

    A peak-to-mean ratio p is spread uniformly over [2 - p, p]; above 2, where that would go below
    zero, as p * u ** (p - 1) for uniform u, which has the same mean and peak and meets it at 2.

    Attributes:
        peak_to_mean: Largest factor, at least 1.
        quantiles: Equally likely factors.
    """

    peak_to_mean: Annotated[Number, Field(ge=1)] | None = None
    quantiles: tuple[Number, ...] = ()

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.peak_to_mean is not None and self.quantiles:
            raise SpecError(
                "peak_to_mean and quantiles exclude each other", "keep one", at=("quantiles",)
            )
        if self.quantiles and (min(self.quantiles) < 0 or sum(self.quantiles) <= 0):
            raise SpecError(
                "quantiles are factors >= 0 with a positive mean, these are not",
                "write measured values divided by their mean, such as [0.8, 1.0, 1.2]",
                at=("quantiles",),
            )
        return self

    def factors(self) -> np.ndarray:
        """Equally likely factors with mean exactly 1; a single 1 if nothing varies."""
        factors: np.ndarray
        if self.quantiles:
            factors = np.array(self.quantiles, dtype=np.float64)
        elif self.peak_to_mean is None or self.peak_to_mean == 1.0:
            return np.ones(1)
        else:
            peak, u = self.peak_to_mean, (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
            factors = 2 - peak + 2 * (peak - 1) * u if peak <= 2 else peak * u ** (peak - 1)
        factors /= factors.mean()
        return factors


CONSTANT = Variation()

RelativeError = Annotated[Number, Field(ge=0)]


def _a_bare_duration_is_enough(schema: dict[str, Any]) -> None:
    whole = dict(schema)
    schema.clear()
    schema |= {"title": whole["title"], "anyOf": [whole, SECONDS_SCHEMA]}


class _Figure(Spec):
    """Something that may have been measured; what nobody measured is not written.

    A profile without confidences so stays what it was, and plans made for it stay valid.
    """

    @model_serializer(mode="wrap")
    def _leave_out_what_nobody_measured(self, write: SerializerFunctionWrapHandler) -> Any:
        optional = {
            "relative_error", "num_iterations", "relative_errors", "model_bytes", "skipped",
            "seeds_per_trainer",
        }  # fmt: skip
        written = write(self)
        return {k: v for k, v in written.items() if k not in optional or v not in (None, (), [])}


class TaskTime(_Figure):
    """Time of one task and iteration on one class of machine, at the profiled number of seeds.

    A bare duration stands for a constant one.

    Attributes:
        mean: Mean time in seconds (written `20ms`).
        variation: How it varies from iteration to iteration.
        num_samples: Executions that were measured.
        relative_error: Half of the mean's 95 % interval, as a share of the mean.
    """

    model_config = ConfigDict(json_schema_extra=_a_bare_duration_is_enough)

    mean: Seconds
    variation: Variation = CONSTANT
    num_samples: Annotated[Count, Field(ge=1)] | None = None
    relative_error: RelativeError | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_bare_duration_is_a_constant(cls, data: object) -> object:
        return data if isinstance(data, Mapping | TaskTime) else {"mean": data}


class StoreTraffic(_Figure):
    """Bytes that stores send per seed.

    Either a measured matrix or a synthetic model: `bytes_per_seed` in all, of which a share
    `locality` comes from the seed's own part and the rest from all stores equally.

    Attributes:
        matrix: Measured bytes per seed; row = part of the seed, column = store.
        bytes_per_seed: Bytes per seed from all stores together.
        locality: Share that comes from the seed's own part; 0 is the paper's model.
        variation: How the volume of one store and sampler varies from iteration to iteration.
        num_iterations: That were measured.
        relative_errors: Like the matrix: half of each entry's 95 % interval, as a share of it; 1
            where nothing was measured.
    """

    matrix: tuple[tuple[Bytes, ...], ...] = ()
    bytes_per_seed: Bytes = 0.0
    locality: Number = Field(default=0.0, ge=0, le=1)
    variation: Variation = CONSTANT
    num_iterations: Annotated[Count, Field(ge=1)] | None = None
    relative_errors: tuple[tuple[RelativeError, ...], ...] = ()

    @model_validator(mode="after")
    def _matrix_is_square(self) -> Self:
        for part, row in enumerate(self.matrix):
            if len(row) != len(self.matrix):
                raise SpecError(
                    f"row {part + 1} of the matrix has {len(row)} columns, the matrix has "
                    f"{len(self.matrix)} rows",
                    "make it square: one row per part of the seed, one column per store",
                    at=("matrix", part),
                )
        if self.relative_errors and [len(row) for row in self.relative_errors] != [
            len(row) for row in self.matrix
        ]:
            raise SpecError(
                "relative_errors has another shape than matrix",
                "give one error per entry of the matrix, or none",
                at=("relative_errors",),
            )
        for other in ("bytes_per_seed", "locality"):
            if self.matrix and getattr(self, other):
                raise SpecError(
                    f"matrix and {other} exclude each other",
                    "keep the matrix if it was measured, else the other",
                    at=(other,),
                )
        return self

    def bytes_per_seed_matrix(self, num_parts: int) -> np.ndarray:
        """Bytes per seed, shape (part of the seed, store)."""
        if not self.matrix:
            spread = (1 - self.locality) / num_parts
            return self.bytes_per_seed * (spread + self.locality * np.eye(num_parts))
        if len(self.matrix) != num_parts:
            raise SpecError(
                f"the profile measured {len(self.matrix)} parts, "
                f"the cluster has {num_parts} machines",
                "profile on this cluster, or use the cluster the profile was made on",
            )
        return np.array(self.matrix, dtype=np.float64)


class BatchTraffic(_Figure):
    """Bytes that a sampler sends its trainer.

    Attributes:
        bytes_per_seed: Mean bytes per seed.
        variation: How the volume varies from iteration to iteration.
        num_iterations: That were measured.
        relative_error: Half of the mean's 95 % interval, as a share of the mean.
    """

    bytes_per_seed: Bytes
    variation: Variation = CONSTANT
    num_iterations: Annotated[Count, Field(ge=1)] | None = None
    relative_error: RelativeError | None = None


class Profile(_Figure):
    """Times and volumes of one job on some classes of machines.

    Attributes:
        source: `measured`, or `synthetic` with the model's origin in `note`.
        note: Where the figures come from.
        seeds_per_sampler: Seeds per sampler and iteration at which sampler times hold, which scale
            in proportion. 0 means the job's own number.
        seeds_per_trainer: The same for trainers; none for those of all of the trainer's samplers.
        task_times: Times per role, then per machine class; class `default` stands for all others.
        store_traffic: Store to sampler volumes.
        batch_traffic: Sampler to trainer volumes.
        model_bytes: Gradients that trainers exchange per iteration, where they were measured.
        skipped: First iterations that were left out: caches and compilers warm up in them.
    """

    version: Literal[1] = 1
    source: Literal["measured", "synthetic"] = "synthetic"
    note: str = ""
    seeds_per_sampler: Number = Field(default=0.0, ge=0)
    seeds_per_trainer: Number | None = Field(default=None, gt=0)
    task_times: Mapping[Role, Mapping[str, TaskTime]]
    store_traffic: StoreTraffic
    batch_traffic: BatchTraffic
    model_bytes: Bytes | None = None
    skipped: Annotated[Count, Field(ge=0)] | None = None

    def nominal_seeds(self, job: Job) -> tuple[float, float]:
        """Seeds per iteration of a sampler and of a trainer at which their times hold."""
        per_sampler = self.seeds_per_sampler or job.batch_size / job.samplers_per_trainer
        return per_sampler, self.seeds_per_trainer or per_sampler * job.samplers_per_trainer

    def seed_scale(self, role: Role, job: Job) -> float:
        """By what the times of a role are multiplied for a job's batch size, shared equally."""
        per_sampler, per_trainer = self.nominal_seeds(job)
        if role is Role.SAMPLER:
            return job.batch_size / job.samplers_per_trainer / per_sampler
        return job.batch_size / per_trainer if role is Role.TRAINER else 1.0

    def task_time(self, role: Role, kind: str) -> TaskTime:
        """Time of a role on a machine class; 0 for ring steps nobody measured.

        Raises:
            SpecError: The profile has no figure for that role and class.
        """
        by_kind = self.task_times.get(role, {})
        found = by_kind.get(kind) or by_kind.get("default")
        if found is None and role is Role.RING:
            return TaskTime(mean=0.0)
        if found is None:
            raise SpecError(
                f"the profile has no {role.value} time for machine class {kind!r}, only for "
                f"{sorted(by_kind) or 'none'}",
                f"add task_times.{role.value}.{kind}, or .default for all classes",
            )
        return found
