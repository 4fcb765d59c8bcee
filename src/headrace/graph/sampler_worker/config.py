"""Config file of a sampler process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from headrace.core.values import Value
from headrace.rpc.config import RpcLimits, TaskAddress

Count = Annotated[int, Field(ge=1)]

# A request for a sub-batch is a few bytes; a trainer has one stream.
SUB_BATCH_LIMITS = RpcLimits(max_rows=1, max_request_bytes=1 << 16, max_streams=8)


class StoreAddress(TaskAddress):
    """Address of the store of a graph partition."""

    part: Annotated[int, Field(ge=0)]


class Wanted(Value):
    """A node column of the batches; with `seeds_only`, only rows of seeds, as for labels."""

    node_type: str
    name: str
    seeds_only: bool = False


class CacheConfig(Value):
    """Cache of remote feature rows.

    Attributes:
        num_bytes: Memory for the rows of all columns and their index.
        policy: `degree` caches the rows that the sampler's own graph partition is expected to
            sample most, `frequency` those requested most so far.
        home: The sampler's own graph partition; required for `degree`.
    """

    num_bytes: Count
    policy: Literal["degree", "frequency"] = "frequency"
    home: Annotated[int, Field(ge=0)] | None = None


class ScoringConfig(Value):
    """Scores of remote nodes and features from the model in training; see `Scorer`.

    Attributes:
        column: Feature column of the nodes.
        features: Fraction of the dimensions that is fetched from other machines.
        least: Weight of a remote node with score 0.
    """

    column: str = "x"
    features: Annotated[float, Field(gt=0, le=1)] = 0.85
    least: Annotated[float, Field(ge=0.01, le=1)] = 0.1


class ListenAddress(Value):
    """Where a sampler listens for a trainer that did not start it.

    Attributes:
        path: Unix socket, for a trainer on the same machine; None for a remote trainer.
        port: Port; 0 for any free port.
        ready: File written with port and process id once the sampler listens.
    """

    path: Path | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    ready: Path
    limits: RpcLimits = SUB_BATCH_LIMITS


class SeedShard(Value):
    """Seeds that one sampler of the plan adds to every batch.

    A run resumed on fewer machines keeps its seed shards, so that batches do not change; some
    samplers then have several.

    Attributes:
        seeds: File of `numpy.save` with original ids.
        seeds_per_iteration: Seeds per iteration.
        ends: Seeds of the last batches of an epoch, if different from `seeds_per_iteration`.
    """

    seeds: Path
    seeds_per_iteration: Count
    ends: tuple[Annotated[int, Field(ge=0)], ...] = ()


class StoreClientConfig(Value):
    """How a task connects to the stores of a run.

    Attributes:
        machine: Name of the task's machine, for messages.
        stores: Stores of the graph partitions that are not on this machine.
        credentials: File written by `Credentials.save`; required for remote tasks.
        tls: Whether connections are encrypted.
        retry_budget_s: How long to retry requests to a task that restarts; 0 to fail at once.
        trace: File for the task's trace; None for no trace.
    """

    machine: str = "this machine"
    stores: tuple[StoreAddress, ...] = ()
    credentials: Path | None = None
    tls: bool = True
    retry_budget_s: Annotated[float, Field(ge=0)] = 0.0
    trace: Path | None = None


class SamplerConfig(StoreClientConfig):
    """Config of a sampler process; the task's name is for messages.

    Attributes:
        graph: Directory of the partitioned graph.
        node_type: Node type of the seeds.
        seeds: File of `numpy.save` with original ids.
        seeds_per_iteration: Seeds per iteration of this sampler.
        ends: Seeds of the last batches of an epoch, if different from `seeds_per_iteration`.
        further: Additional seed shards; each produces its own sub-batch, after the first.
        batches_per_epoch: Batches per epoch, equal for all samplers of a trainer.
        num_epochs: Number of epochs; None for no limit.
        fanouts: Neighbours per hop, for each edge type.
        weight: Edge column with sampling weights.
        far: Weight of neighbours in other partitions than most seeds; others have 1.
        labor: Whether the nodes of a hop share the random numbers of their neighbours.
        columns: Node columns of the batches; None for all columns, scalars for seeds only.
        edge_ids: Whether batches have original edge ids.
        edge_columns: Whether batches have all edge columns.
        keep_dtype: Whether 16-bit features are kept, not cast to `float32`.
        window: Sub-batches of each seed shard that may be queued for the trainer.
        sampled_ahead: Sub-batches sampled before their features are fetched.
        sampling_threads: Sub-batches sampled concurrently; None for 1 if the whole graph is on
            this machine, else `sampled_ahead`.
        fetching_threads: Sub-batches whose features are fetched concurrently.
        scoring: How remote nodes and features are sampled by scores; None for no scores.
        listen: Where to listen for a trainer that did not start this process; None if standard
            input is the socket of the trainer.
        waits: File with the names of the stores that block the sampler; None for no file.
    """

    task: str = "sampler 0"
    graph: Path
    node_type: str
    seeds: Path
    seeds_per_iteration: Count
    ends: tuple[Annotated[int, Field(ge=0)], ...] = ()
    further: tuple[SeedShard, ...] = ()
    batches_per_epoch: Count
    seed: int = 0
    shuffle: bool = True
    first_epoch: Annotated[int, Field(ge=0)] = 0
    first_batch: Annotated[int, Field(ge=0)] = 0
    num_epochs: Count | None = None
    fanouts: tuple[tuple[tuple[str, str, str], tuple[int, ...]], ...]
    replace: bool = False
    disjoint: bool = False
    weight: str | None = None
    far: Annotated[float, Field(gt=0, le=1)] = 1.0
    labor: bool = False
    columns: tuple[Wanted, ...] | None = None
    edge_ids: bool = False
    edge_columns: bool = False
    keep_dtype: bool = False
    window: Count = 4
    sampled_ahead: Count = 8
    sampling_threads: Count | None = None
    fetching_threads: Count = 2
    cache: CacheConfig | None = None
    scoring: ScoringConfig | None = None
    listen: ListenAddress | None = None
    waits: Path | None = None

    @property
    def shards(self) -> tuple[SeedShard, ...]:
        """All seed shards, in the order of their sub-batches."""
        return (
            SeedShard(
                seeds=self.seeds, seeds_per_iteration=self.seeds_per_iteration, ends=self.ends
            ),
            *self.further,
        )

    @property
    def is_remote(self) -> bool:
        """Whether the trainer is on another machine."""
        return self.listen is not None and self.listen.path is None

    @property
    def name(self) -> str:
        """Task and machine, for messages."""
        return f"{self.task} on {self.machine}"
