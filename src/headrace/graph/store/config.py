"""Config file of a store process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from headrace.core.values import Value
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.store.embedding_service import Embeddings
from headrace.graph.store.shard import Shard, open_shard
from headrace.rpc.config import RpcLimits

_Part = Annotated[int, Field(ge=0)]
_Port = Annotated[int, Field(ge=0, le=65535)]


class StoreConfig(Value):
    """Config of a store process.

    Attributes:
        part: Graph partition to serve; None to serve `parts`.
        credentials: File written by `Credentials.save`.
        ready: File written with ports and process id once the store serves.
        parts: Port of each graph partition, 0 for any free port; may be empty.
        tls: Whether connections are encrypted; without TLS the token is sent in plain text.
        warm: Whether to read the columns into memory at start, in the background.
        verify: Whether to verify the checksums of this machine's files in the background. The
            process ends if a file is damaged, and otherwise writes `verified`.
        embedding_folder: Directory of embedding files; None to disable embeddings.
    """

    graph: Path
    part: _Part | None = None
    credentials: Path
    ready: Path
    host: str = "127.0.0.1"
    port: _Port = 0
    parts: Mapping[_Part, _Port] = Field(default_factory=dict)
    tls: bool = True
    warm: bool = True
    verify: bool = False
    embedding_folder: Path | None = None
    limits: RpcLimits = RpcLimits()

    @property
    def ports(self) -> Mapping[int, int]:
        """Port of every graph partition to serve."""
        return self.parts if self.part is None else {self.part: self.port}

    @property
    def verified(self) -> Path:
        """File that exists once all files have passed verification."""
        return self.ready.with_name(f"{self.ready.name}-verified")


def shard_of(config: StoreConfig, number: int) -> Shard:
    """Open a graph partition; raise `SpecError` if it does not exist."""
    return open_shard(open_graph(config.graph), number)


def embeddings_of(config: StoreConfig, shard: Shard) -> Embeddings | None:
    """Open the embeddings of a graph partition, with those of earlier processes."""
    if config.embedding_folder is None:
        return None
    return Embeddings(shard, config.embedding_folder / f"part-{shard.part}")
