"""What a store's process is told: a file, written by whoever starts it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from headrace.core.values import Value
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.store.embedding_service import Embeddings
from headrace.graph.store.shard import Shard, open_shard
from headrace.rpc.limits import RpcLimits

_Part = Annotated[int, Field(ge=0)]
_Port = Annotated[int, Field(ge=0, le=65535)]


class StoreConfig(Value):
    """A store.

    Attributes:
        graph: Directory of the partitioned graph.
        part: Which part to serve; none to serve what `parts` says.
        credentials: File written by `Credentials.save`.
        ready: File to write, with ports and process number, when the store serves.
        host: Address to listen on.
        port: 0 for any that is free.
        parts: Several parts, or none at all: the port of each, 0 for any that is free.
        tls: Whether everything is encrypted; without it the token travels readable to all.
        sockets: Whether to offer a bare socket, on any free port, beside Flight: faster, and only
            without TLS.
        warm: Whether to read the part's columns into memory at start, in the background.
        verify: Whether to compare the machine's files with their checksums, in the background; a
            store ends if one is damaged, and otherwise writes `verified`.
        embedding_folder: Where files of learnable rows go; none to have no such rows.
        limits: What clients may ask for.
    """

    graph: Path
    part: _Part | None = None
    credentials: Path
    ready: Path
    host: str = "127.0.0.1"
    port: _Port = 0
    parts: Mapping[_Part, _Port] = Field(default_factory=dict)
    tls: bool = True
    sockets: bool = False
    warm: bool = True
    verify: bool = False
    embedding_folder: Path | None = None
    limits: RpcLimits = RpcLimits()

    @property
    def ports(self) -> Mapping[int, int]:
        """Port of every part that is to be served."""
        return self.parts if self.part is None else {self.part: self.port}

    @property
    def verified(self) -> Path:
        """File that is there once all files were found intact."""
        return self.ready.with_name(f"{self.ready.name}-verified")


def shard_of(config: StoreConfig, number: int) -> Shard:
    """Open a part.

    Raises:
        SpecError: The part is not there.
    """
    return open_shard(open_graph(config.graph), number)


def embeddings_of(config: StoreConfig, shard: Shard) -> Embeddings | None:
    """Learnable rows of a part, with those that an earlier process has made."""
    if config.embedding_folder is None:
        return None
    return Embeddings(shard, config.embedding_folder / f"part-{shard.part}")
