"""The training job somebody asks for."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from headrace.core.errors import SpecError
from headrace.core.units import Amount, Bytes, Count, quote
from headrace.core.values import Spec

UNLIMITED_WINDOW = 0
"""How an unlimited run-ahead window is stored; people write `unlimited`."""


class Role(StrEnum):
    """What a task does."""

    STORE = "store"
    SAMPLER = "sampler"
    TRAINER = "trainer"
    SERVER = "ps"
    RING = "ring"


class Sync(StrEnum):
    """How trainers agree on parameters."""

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
        samplers_per_trainer: Samplers that feed each trainer and nobody else.
        sync: Parameter servers or ring all-reduce.
        parameter_servers: Number of servers, each with an equal shard of the model; no matter for a
            ring.
        batch_size: Seeds per trainer and iteration, split over its samplers.
        model_bytes: Size of all parameters, and of all gradients.
        iterations: How many iterations to train.
        window: Run-ahead window K per producer-consumer edge: a producer starts iteration n only
            when each consumer has finished n - K. 1 means no overlap; `unlimited` is the paper.
        demands: Resource amounts a task of each role occupies; ring steps occupy none.

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
                "raise batch_size or lower samplers_per_trainer",
                at=("batch_size",),
            )
        if Role.RING in self.demands:
            raise SpecError(
                "ring steps run inside their trainer and have no demand of their own",
                "remove it, or add it to the trainer's",
                at=("demands", "ring"),
            )
        return self

    @property
    def num_samplers(self) -> int:
        """Samplers of all trainers together."""
        return self.trainers * self.samplers_per_trainer

    @property
    def num_servers(self) -> int:
        """Parameter servers; none when the trainers form a ring."""
        return self.parameter_servers if self.sync is Sync.PS else 0

    def demand(self, role: Role) -> Mapping[str, float]:
        """Resource amounts one task of this role occupies."""
        return self.demands.get(role, {})
