"""Profile of a job: measured, or from a synthetic model; a job with its cluster and profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.full_graph import FullGraphFigures, check_full_graph, omit_unset
from headrace.core.growth import Growth, Quantity
from headrace.core.job import Job, JobKind, Role
from headrace.core.seeds import uniform_seeds
from headrace.core.step_counts import StepCounts
from headrace.core.traffic import Traffic
from headrace.core.units import SECONDS_SCHEMA, Bytes, Count, Number, Seconds
from headrace.core.values import Spec

NUM_QUANTILES = 256
"""Quantiles of a sampled distribution; the tail beyond 1/512 is the last quantile."""


class Variation(Spec):
    """Variation of a positive quantity around its mean, as factors of mean 1.

    Either `peak_to_mean`, the paper's PMR (section VI-B), or measured `quantiles`: equally likely
    factors, normalised to mean 1. Without either the quantity is constant.

    A peak-to-mean ratio p <= 2 is uniform over [2 - p, p]; p > 2, where that would be negative, is
    p * u ** (p - 1) for uniform u, with the same mean and peak; both agree at p = 2.

    Attributes:
        peak_to_mean: Largest factor, from 1 to 256: a sampled distribution has 256 quantiles.
        quantiles: Equally likely factors.
    """

    peak_to_mean: Annotated[Number, Field(ge=1, le=NUM_QUANTILES)] | None = None
    quantiles: tuple[Number, ...] = ()

    @model_validator(mode="after")
    def _exclusive_forms(self) -> Self:
        if self.peak_to_mean is not None and self.quantiles:
            raise SpecError(
                "peak_to_mean and quantiles exclude each other", "keep one", at=("quantiles",)
            )
        if self.quantiles and (min(self.quantiles) < 0 or sum(self.quantiles) <= 0):
            raise SpecError(
                "quantiles must be factors >= 0 with a positive mean",
                "write measured values divided by their mean, such as [0.8, 1.0, 1.2]",
                at=("quantiles",),
            )
        return self

    def factors(self) -> np.ndarray:
        """Equally likely factors with mean exactly 1; a single 1 without variation."""
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


def _allow_plain_duration(schema: dict[str, Any]) -> None:
    whole = dict(schema)
    schema.clear()
    schema |= {"title": whole["title"], "anyOf": [whole, SECONDS_SCHEMA]}


class _Figure(Spec):
    """A possibly measured figure. Unset fields are not written, which keeps fingerprints stable."""

    @model_serializer(mode="wrap")
    def _omit_unset_fields(self, write: SerializerFunctionWrapHandler) -> Any:
        optional = (
            "relative_error", "num_iterations", "relative_errors", "model_bytes", "skipped",
            "seeds_per_trainer", "num_samplers", "growth", "part_seeds", "traffic", "interval",
            "steps", "full_graph",
        )  # fmt: skip
        return omit_unset(write(self), optional)


class TaskTime(_Figure):
    """Time of one task execution on one machine class, at the profiled number of seeds.

    A plain duration is a constant time.

    Attributes:
        mean: Mean time in seconds (written `20ms`).
        variation: Variation between iterations.
        num_samples: Number of measured executions.
        relative_error: Half of the mean's 95 % interval, as a fraction of the mean.
        interval: Lower and upper limit of the mean, with 90 % confidence, if it was estimated from
            `num_samples` measured steps of other settings.
    """

    model_config = ConfigDict(json_schema_extra=_allow_plain_duration)

    mean: Seconds
    variation: Variation = CONSTANT
    num_samples: Annotated[Count, Field(ge=1)] | None = None
    relative_error: RelativeError | None = None
    interval: tuple[Seconds, Seconds] | None = None

    @model_validator(mode="before")
    @classmethod
    def _a_bare_duration_is_a_constant(cls, data: object) -> object:
        return data if isinstance(data, Mapping | TaskTime) else {"mean": data}


class StepSample(Spec):
    """Measured steps of trainers with the same batch size, and what such a step does.

    Attributes:
        seeds: Seeds of a trainer's batch.
        counts: What a step does, in the order of `StepCounts`: operations, FLOPs and bytes of
            matrix products, gathered, scattered and other bytes.
        times: Median time of a step by machine class.
    """

    seeds: Annotated[Number, Field(gt=0)]
    counts: tuple[Annotated[Number, Field(ge=0)], ...] = Field(
        min_length=len(StepCounts._fields), max_length=len(StepCounts._fields)
    )
    times: Mapping[str, Annotated[Seconds, Field(gt=0)]]


class StoreTraffic(_Figure):
    """Bytes that stores send per seed.

    Either a measured matrix or a synthetic model: `bytes_per_seed` in total, of which a fraction
    `locality` comes from the seed's own graph partition and the rest from all stores equally.

    Attributes:
        matrix: Measured bytes per seed; row = graph partition of the seed, column = store.
        bytes_per_seed: Bytes per seed from all stores together.
        locality: Fraction from the seed's own graph partition; 0 is the paper's model.
        variation: Variation between iterations of the volume per store and sampler.
        num_iterations: Number of measured iterations.
        relative_errors: Same shape as the matrix: half of each entry's 95 % interval, as a
            fraction of it; 1 where nothing was measured.
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
                    "make it square: one row per graph partition of the seed, one column per store",
                    at=("matrix", part),
                )
        if self.relative_errors and [len(row) for row in self.relative_errors] != [
            len(row) for row in self.matrix
        ]:
            raise SpecError(
                "relative_errors and matrix differ in shape",
                "give one error per entry of the matrix, or none",
                at=("relative_errors",),
            )
        for other in ("bytes_per_seed", "locality"):
            if self.matrix and getattr(self, other):
                raise SpecError(
                    f"matrix and {other} exclude each other",
                    "keep the matrix if it was measured, otherwise the other",
                    at=(other,),
                )
        return self

    def bytes_per_seed_matrix(self, num_parts: int) -> np.ndarray:
        """Bytes per seed, shape (graph partition of the seed, store)."""
        if not self.matrix:
            spread = (1 - self.locality) / num_parts
            return self.bytes_per_seed * (spread + self.locality * np.eye(num_parts))
        if len(self.matrix) != num_parts:
            raise SpecError(
                f"the profile measured {len(self.matrix)} graph partitions, "
                f"the cluster has {num_parts} machines",
                "profile on this cluster, or use the cluster the profile was made on",
            )
        return np.array(self.matrix, dtype=np.float64)


class BatchTraffic(_Figure):
    """Bytes that a sampler sends to its trainer.

    Attributes:
        bytes_per_seed: Mean bytes per seed.
        variation: Variation between iterations.
        num_iterations: Number of measured iterations.
        relative_error: Half of the mean's 95 % interval, as a fraction of the mean.
    """

    bytes_per_seed: Bytes
    variation: Variation = CONSTANT
    num_iterations: Annotated[Count, Field(ge=1)] | None = None
    relative_error: RelativeError | None = None


_NEW_FIELDS = ("growth", "num_samplers", "part_seeds", "traffic", "steps", "full_graph")
"""Fields that version 1 does not have."""


class Profile(_Figure):
    """Times and volumes of one job on some machine classes.

    Attributes:
        source: `measured`, or `synthetic` with the model's origin in `note`.
        note: Origin of the figures.
        version: 2 if the profile has `growth`, `num_samplers`, `part_seeds`, `traffic`, `steps` or
            `full_graph`, else 1.
        seeds_per_sampler: Seeds per sampler and iteration for which sampler times and bytes per
            seed hold. 0 means the job's own number.
        seeds_per_trainer: The same for trainers; defaults to the seeds of all its samplers.
        num_samplers: Samplers of all trainers for which store times hold; without it store times
            are constant.
        growth: Growth of a sub-batch with its seeds; without it times and volumes are proportional
            to seeds.
        part_seeds: Training seeds of each graph partition; equally many if absent.
        traffic: Settings that reduce the traffic, with which the volumes hold; none if absent.
        task_times: Times per role, then per machine class; class `default` applies to all others.
        store_traffic: Store to sampler volumes.
        batch_traffic: Sampler to trainer volumes.
        model_bytes: Measured gradient bytes that trainers exchange per iteration.
        steps: Measured steps of trainers, from which times of other settings are estimated.
        full_graph: Parts and swaps of a full-graph job, whose trainers' times are those of an epoch
            without waits.
        skipped: Number of warm-up iterations that were not measured.
    """

    version: Literal[1, 2] = 1
    source: Literal["measured", "synthetic"] = "synthetic"
    note: str = ""
    seeds_per_sampler: Number = Field(default=0.0, ge=0)
    seeds_per_trainer: Number | None = Field(default=None, gt=0)
    num_samplers: Annotated[Count, Field(ge=1)] | None = None
    growth: Growth | None = None
    part_seeds: tuple[Annotated[Count, Field(ge=0)], ...] | None = None
    traffic: Traffic | None = None
    task_times: Mapping[Role, Mapping[str, TaskTime]]
    store_traffic: StoreTraffic
    batch_traffic: BatchTraffic
    model_bytes: Bytes | None = None
    steps: tuple[StepSample, ...] = ()
    full_graph: FullGraphFigures | None = None
    skipped: Annotated[Count, Field(ge=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _version_of_growth(cls, data: object) -> object:
        new = [] if not isinstance(data, Mapping) else [k for k in _NEW_FIELDS if data.get(k)]
        if not new or not isinstance(data, Mapping):
            return data
        if data.get("version", 2) == 1:
            raise SpecError(
                f"a profile of version 1 has no {new[0]}", "write `version: 2`", at=("version",)
            )
        return {"version": 2, **data}

    def nominal_seeds(self, job: Job) -> tuple[float, float]:
        """Seeds per iteration of a sampler and of a trainer for which their times hold."""
        per_sampler = self.seeds_per_sampler or job.batch_size / job.samplers_per_trainer
        return per_sampler, self.seeds_per_trainer or per_sampler * job.samplers_per_trainer

    def equivalent_seeds(self, quantity: Quantity, seeds: np.ndarray, job: Job) -> np.ndarray:
        """Seeds per sampler, converted to seeds at which a quantity is proportional.

        `seeds` are the seeds per iteration of samplers. Multiplied by the nominal bytes or seconds
        per seed, the result is the quantity of each sampler's sub-batch.
        """
        if self.growth is None:
            return seeds
        return self.growth.equivalent_seeds(quantity, seeds, self.nominal_seeds(job)[0])

    def store_bytes_per_seed(self, job: Job, num_parts: int) -> np.ndarray:
        """Bytes per seed of equally large sub-batches, shape (partition of the seed, store)."""
        seeds = np.array(job.batch_size / job.samplers_per_trainer)
        ratio = float(self.equivalent_seeds("store_bytes", seeds, job) / seeds)
        return self.store_traffic.bytes_per_seed_matrix(num_parts) * ratio

    def batch_bytes(self, job: Job, seeds: np.ndarray) -> np.ndarray:
        """Bytes of sub-batches with these seeds, from sampler to trainer."""
        equivalent = self.equivalent_seeds("batch_bytes", seeds, job)
        return equivalent * self.batch_traffic.bytes_per_seed

    def part_weights(self, num_parts: int) -> np.ndarray | None:
        """Share of the training seeds in each graph partition; None if all are equal."""
        if self.part_seeds is None:
            return None
        if len(self.part_seeds) != num_parts or not sum(self.part_seeds):
            raise SpecError(
                f"the profile has {sum(self.part_seeds)} training seeds in {len(self.part_seeds)} "
                f"graph partitions, the cluster has {num_parts} machines",
                "partition a graph with training nodes for this cluster, and plan with it",
            )
        return np.array(self.part_seeds, dtype=np.float64) / sum(self.part_seeds)

    def seed_scale(self, role: Role, job: Job) -> float:
        """Factor of a role's times for the job's batch size, split equally over samplers."""
        if role is Role.TRAINER and self.growth is None:
            return job.batch_size / self.nominal_seeds(job)[1]
        seeds = np.full(job.num_samplers, job.batch_size / job.samplers_per_trainer)
        return float(self.time_factors(role, job, seeds)[0])

    def time_factors(self, role: Role, job: Job, seeds: np.ndarray) -> np.ndarray:
        """Factor of the time of each sampler, each trainer, all stores or all others.

        `seeds` are the seeds per iteration of all samplers, grouped by trainer.
        """
        sampler_seeds, trainer_seeds = self.nominal_seeds(job)
        if role is Role.SAMPLER:
            return self.equivalent_seeds("sampler_time", seeds, job) / sampler_seeds
        if role is Role.TRAINER:
            equivalent = self.equivalent_seeds("trainer_time", seeds, job)
            per_trainer: np.ndarray = equivalent.reshape(job.trainers, -1).sum(axis=1)
            return per_trainer / trainer_seeds
        if role is Role.STORE and self.num_samplers is not None:
            total: np.ndarray = self.equivalent_seeds("store_bytes", seeds, job).sum(keepdims=True)
            return total / (self.num_samplers * sampler_seeds)
        return np.ones(1)

    def task_time(self, role: Role, kind: str) -> TaskTime:
        """Time of a role on a machine class; 0 for ring steps without a measurement.

        Layers have the time of their trainer, of which each is a share.

        Raises:
            SpecError: The profile has no figure for that role and class.
        """
        role = Role.TRAINER if role is Role.LAYER else role
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


class Problem(NamedTuple):
    """A job, the machines to place it on, and its times and volumes."""

    cluster: Cluster
    job: Job
    profile: Profile

    @property
    def uniform_seeds(self) -> np.ndarray:
        """Uniform seeds per iteration, shape (num_samplers, num_machines).

        Every sampler takes seeds of all graph partitions in proportion to their training seeds.
        """
        num = self.cluster.num_machines
        weights = self.profile.part_weights(num)
        seeds = uniform_seeds(self.job, num)
        return seeds if weights is None else seeds * (num * weights)

    @property
    def full_graph(self) -> FullGraphFigures:
        """Parts and swaps of a full-graph job; see `check_full_graph`."""
        return check_full_graph(self.job.swaps, self.job.trainers, self.profile.full_graph)

    def with_profile(self, profile: Profile) -> Problem:
        """The same job with another profile, and with its model size and swaps if measured."""
        changes: dict[str, Any] = {}
        if profile.model_bytes is not None:
            changes["model_bytes"] = profile.model_bytes
        if self.job.kind is JobKind.FULL_GRAPH and profile.full_graph is not None:
            changes["swaps"] = profile.full_graph.swaps or self.job.swaps
        job = self.job.model_copy(update=changes) if changes else self.job
        return Problem(self.cluster, job, profile)
