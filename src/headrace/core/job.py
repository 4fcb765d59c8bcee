"""Description of a training job."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from headrace.core.errors import SpecError
from headrace.core.units import Amount, Bytes, Count, quote
from headrace.core.values import Spec

UNLIMITED_WINDOW = 0
"""Internal value of an unlimited run-ahead window (`unlimited` in files)."""


class Role(StrEnum):
    """Role of a task."""

    STORE = "store"
    SAMPLER = "sampler"
    TRAINER = "trainer"
    SERVER = "ps"
    RING = "ring"


class Sync(StrEnum):
    """Gradient synchronisation method."""

    PS = "ps"
    RING = "ring"


def _parse_window(value: object) -> object:
    if value == "unlimited":
        return UNLIMITED_WINDOW
    if isinstance(value, str) or (isinstance(value, int | float) and value < 0):
        raise SpecError(f"{quote(value)} is not a window", "write 1, 2, ... or `unlimited`")
    return value


Window = Annotated[
    Count,
    BeforeValidator(_parse_window),
    Field(ge=0),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "unlimited"}]}),
]


class Job(Spec):
    """A distributed GNN training job (DGTP, section III).

    Attributes:
        trainers: Number of data-parallel trainers (the paper's workers).
        samplers_per_trainer: Number of samplers dedicated to each trainer.
        sync: Parameter servers or ring all-reduce.
        parameter_servers: Number of servers, each with an equal model shard; unused for a ring.
        batch_size: Seeds per trainer and iteration, split over its samplers.
        model_bytes: Size of all parameters, and of all gradients.
        iterations: Number of training iterations.
        window: Run-ahead window K per producer-consumer edge: a producer starts iteration n only
            after each consumer has finished n - K. 1 means no overlap; `unlimited` is the paper's.
        demands: Resources that one task of each role occupies; ring steps occupy none.

    Example:
        >>> from headrace import Job
        >>> job = Job(trainers=4, samplers_per_trainer=2, batch_size=1000, model_bytes="1MB")
        >>> job.num_samplers
        8
    """

    version: Literal[1] = 1
    name: str = "job"
    trainers: Count = Field(ge=1)
    samplers_per_trainer: Count = Field(default=1, ge=1)
    sync: Sync = Sync.RING
    parameter_servers: Count = Field(default=1, ge=1)
    batch_size: Count = Field(ge=1)
    model_bytes: Bytes = 0.0
    iterations: Count = Field(default=200, ge=1)
    window: Window = 2
    demands: Mapping[Role, Mapping[str, Amount]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _batch_covers_samplers(self) -> Self:
        if self.batch_size < self.samplers_per_trainer:
            raise SpecError(
                f"batch_size {self.batch_size} gives {self.samplers_per_trainer} samplers less "
                "than one seed each",
                "increase batch_size or decrease samplers_per_trainer",
                at=("batch_size",),
            )
        if Role.RING in self.demands:
            raise SpecError(
                "ring steps run inside their trainer and have no demand of their own",
                "remove it, or add it to the trainer's demand",
                at=("demands", "ring"),
            )
        return self

    @property
    def num_samplers(self) -> int:
        """Number of samplers of all trainers."""
        return self.trainers * self.samplers_per_trainer

    @property
    def num_servers(self) -> int:
        """Number of parameter servers; 0 for ring all-reduce."""
        return self.parameter_servers if self.sync is Sync.PS else 0

    def demand(self, role: Role) -> Mapping[str, float]:
        """Resources that one task of this role occupies."""
        return self.demands.get(role, {})
