"""Description of a training job."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)

from headrace.core.errors import SpecError
from headrace.core.full_graph import RowSwap, omit_unset, with_way_back
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
    LAYER = "layer"


class JobKind(StrEnum):
    """What an iteration of a job trains on: sampled batches, or the full graph."""

    SAMPLED = "sampled"
    FULL_GRAPH = "full-graph"


class Parallelism(StrEnum):
    """What trainers of a full-graph job divide in layers that add up rows: nodes, or features."""

    AUTO = "auto"
    ROWS = "rows"
    FEATURES = "features"


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


def _let_full_graphs_omit_batches(schema: dict[str, Any]) -> None:
    schema["required"] = [name for name in schema["required"] if name != "batch_size"]
    full_graph = {"properties": {"kind": {"const": "full-graph"}}, "required": ["kind"]}
    schema |= {"if": full_graph, "else": {"required": ["batch_size"]}}


class Job(Spec):
    """A distributed GNN training job (DGTP, section III).

    An iteration of a full-graph job is an epoch: a step on all nodes and edges. Its samplers, if
    the script uses them for something else, are not simulated.

    Attributes:
        kind: `sampled`, or `full-graph` if trainers train on their parts of the graph.
        trainers: Number of data-parallel trainers (the paper's workers).
        samplers_per_trainer: Number of samplers dedicated to each trainer.
        sync: Parameter servers or ring all-reduce.
        parameter_servers: Number of servers, each with an equal model shard; unused for a ring.
        batch_size: Seeds per trainer and iteration, split over its samplers; optional in a
            full-graph job.
        model_bytes: Size of all parameters, and of all gradients.
        iterations: Number of training iterations.
        window: Run-ahead window K per producer-consumer edge: a producer starts iteration n only
            after each consumer has finished n - K. 1 means no overlap; `unlimited` is the paper's.
        demands: Resources that one task of each role occupies; ring steps occupy none.
        swaps: Rows that the trainers of a full-graph job exchange in an epoch, in their order. If
            all are plain widths, they are those of the forward pass, and the backward pass
            follows. Those of a measured profile replace them.
        parallelism: What trainers of a full-graph job divide in layers that add up rows: `rows`,
            `features`, or for each layer what makes the shorter epochs (`auto`).
        bins: Bins of nodes by which layers of a full-graph job divide their messages, unless the
            script sets them; 1 if not given.

    Example:
        >>> from headrace import Job
        >>> job = Job(trainers=4, samplers_per_trainer=2, batch_size=1000, model_bytes="1MB")
        >>> job.num_samplers
        8
    """

    model_config = ConfigDict(json_schema_extra=_let_full_graphs_omit_batches)

    version: Literal[1] = 1
    kind: JobKind = JobKind.SAMPLED
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
    swaps: Annotated[tuple[RowSwap, ...], BeforeValidator(with_way_back)] = ()
    parallelism: Parallelism = Parallelism.AUTO
    bins: Annotated[Count, Field(ge=1)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _full_graphs_have_no_batches(cls, data: object) -> object:
        if not isinstance(data, Mapping) or data.get("kind") != JobKind.FULL_GRAPH:
            return data
        # Each sampler of a plan has at least one seed.
        return {"batch_size": data.get("samplers_per_trainer", 1), **data}

    @model_serializer(mode="wrap")
    def _omit_new_fields(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # Jobs of earlier versions do not have them; their fingerprints stay the same.
        written = write(self)
        if self.kind is JobKind.SAMPLED:
            written.pop("kind", None)
        if self.parallelism is Parallelism.AUTO:
            written.pop("parallelism", None)
        return omit_unset(written, ("swaps", "bins"))

    @model_validator(mode="after")
    def _batch_covers_samplers(self) -> Self:
        if self.batch_size < self.samplers_per_trainer:
            raise SpecError(
                f"batch_size {self.batch_size} gives {self.samplers_per_trainer} samplers less "
                "than one seed each",
                "increase batch_size or decrease samplers_per_trainer",
                at=("batch_size",),
            )
        for role, what in ((Role.RING, "ring steps"), (Role.LAYER, "layers")):
            if role in self.demands:
                raise SpecError(
                    f"{what} run inside their trainer and have no demand of their own",
                    "remove it, or add it to the trainer's demand",
                    at=("demands", role.value),
                )
        is_divided = self.parallelism is not Parallelism.AUTO
        for name, is_set, words in (
            ("swaps", self.swaps, "swaps of rows"),
            ("bins", self.bins, "bins of nodes"),
            ("parallelism", is_divided, "rows of layers to divide"),
        ):
            if is_set and self.kind is JobKind.SAMPLED:
                raise SpecError(
                    f"a sampled job has no {words}", "write `kind: full-graph`", at=(name,)
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
