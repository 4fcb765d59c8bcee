"""What a sampler's process is told: a file, written by whoever starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from headrace.core.values import Value
from headrace.rpc.limits import RpcLimits

Count = Annotated[int, Field(ge=1)]

# A request for a part is a few bytes; a trainer has one stream.
PART_LIMITS = RpcLimits(max_rows=1, max_request_bytes=1 << 16, max_streams=8)


class StoreAddress(Value):
    """A store that has a part which is not on the sampler's machine.

    Attributes:
        part: Which part.
        task: Name of the store, for messages.
        machine: Name of its machine, for messages.
        host: Name or address it listens on.
        port: Port it listens on.
    """

    part: Annotated[int, Field(ge=0)]
    task: str
    machine: str
    host: str
    port: Annotated[int, Field(ge=1, le=65535)]


class Wanted(Value):
    """A column of nodes that batches have.

    Attributes:
        node_type: Whose.
        name: Of the column.
        seeds_only: Whether only rows of seeds are handed over, as for labels.
    """

    node_type: str
    name: str
    seeds_only: bool = False


class CacheConfig(Value):
    """Rows of other machines that a sampler keeps.

    Attributes:
        num_bytes: Memory for rows of all columns, and for finding them.
        policy: `degree` keeps the rows that the sampler's own part is expected to ask for most,
            `frequency` those that were asked for most.
        home: The part whose edges say what is asked for; needed for `degree`.
    """

    num_bytes: Count
    policy: Literal["degree", "frequency"] = "frequency"
    home: Annotated[int, Field(ge=0)] | None = None


class ListenAddress(Value):
    """How a sampler is reached by a trainer that did not start it.

    Attributes:
        path: File of a Unix socket, for a trainer on the same machine; none for one on another.
        host: Address to listen on.
        port: 0 for any that is free.
        ready: File to write, with port and process number, when the sampler listens.
        limits: What anyone may ask for.
    """

    path: Path | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    ready: Path
    limits: RpcLimits = PART_LIMITS


class SeedShard(Value):
    """What one sampler of a plan adds to every batch.

    A run that goes on with fewer machines keeps its lanes, so that batches stay what they are: some
    samplers then have several.

    Attributes:
        seeds: File of `numpy.save`: original ids.
        share: Seeds of every batch.
        ends: Seeds of the last batches of an epoch, if that is not its share.
    """

    seeds: Path
    share: Count
    ends: tuple[Annotated[int, Field(ge=0)], ...] = ()


class SamplerConfig(Value):
    """A sampler.

    Attributes:
        task: Name of the sampler, for messages.
        machine: Name of its machine, for messages.
        graph: Directory of the partitioned graph.
        stores: Where the parts are that this machine has not.
        credentials: File written by `Credentials.save`; needed to ask stores and to be asked.
        tls: Whether connections to other machines are encrypted.
        node_type: What seeds are.
        seeds: File of `numpy.save`: original ids.
        share: Seeds that this sampler adds to every batch.
        ends: Seeds that it adds to the last batches of an epoch, if that is not its share.
        further: Lanes that it has besides: each makes a part of its own, after the first.
        batches_per_epoch: The same for all samplers of a trainer.
        seed: Of orders and draws.
        shuffle: Whether every epoch has its own order.
        first_epoch: Where to begin ...
        first_batch: ... and with which batch of it.
        num_epochs: How many, with the first; none to go on until the trainer has enough.
        fanouts: Neighbours per hop, for each edge type.
        replace: Whether a neighbour may be drawn again.
        disjoint: Whether every seed has its own nodes.
        weight: Edge column by which neighbours are drawn.
        columns: Values that batches have; none for all columns, scalars for seeds only.
        edge_ids: Whether batches have the original ids of their edges.
        edge_columns: Whether batches have all columns of their edges.
        keep_dtype: Whether features of 16 bits are handed over as they are, not as `float32`.
        window: How many parts of each lane may wait for the trainer.
        sampled_ahead: How many parts may be sampled before their values are fetched.
        sampling_threads: How many parts are sampled at the same time; none for one if the graph
            is on this machine, else for as many as may be sampled ahead.
        fetching_threads: How many parts' values are fetched at the same time.
        cache: None to ask for every row anew.
        listen: For a trainer that did not start this process; on another machine it asks with the
            same credentials. None if standard input is the socket of a trainer on this one.
        trace: File for records of what each part takes; none to record nothing.
        retry_budget_s: How long to retry requests to a store that restarts; 0 to fail at once.
        waits: File that says whom the sampler waits for, while it does; none to say nothing.
    """

    task: str = "sampler 0"
    machine: str = "this machine"
    graph: Path
    stores: tuple[StoreAddress, ...] = ()
    credentials: Path | None = None
    tls: bool = True
    node_type: str
    seeds: Path
    share: Count
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
    columns: tuple[Wanted, ...] | None = None
    edge_ids: bool = False
    edge_columns: bool = False
    keep_dtype: bool = False
    window: Count = 4
    sampled_ahead: Count = 8
    sampling_threads: Count | None = None
    fetching_threads: Count = 2
    cache: CacheConfig | None = None
    listen: ListenAddress | None = None
    trace: Path | None = None
    retry_budget_s: Annotated[float, Field(ge=0)] = 0.0
    waits: Path | None = None

    @property
    def lanes(self) -> tuple[SeedShard, ...]:
        """All of them, in the order of their parts."""
        return (SeedShard(seeds=self.seeds, share=self.share, ends=self.ends), *self.further)

    @property
    def name(self) -> str:
        """Task and machine, as messages have it."""
        return f"{self.task} on {self.machine}"
