"""What a store's process is told: a file, written by whoever starts it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from headrace.core.errors import SpecError
from headrace.core.values import Value
from headrace.graph.opening import open_graph
from headrace.graph.service.embeddings import SparseOptimizer, create_embedding
from headrace.graph.service.limits import Limits
from headrace.graph.service.security import Credentials
from headrace.graph.service.shard import Rows, Shard, open_shard


class EmbeddingConfig(Value):
    """Learnable rows of one node type.

    Attributes:
        node_type: Whose rows.
        column: What they are called; no column of the graph.
        dim: Numbers per row.
        seed: Of the first values.
        optimizer: `sgd`, `adagrad` or `adam`.
        lr: Step size.
    """

    node_type: str
    column: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_\-]{0,99}$")]
    dim: Annotated[int, Field(ge=1, le=65536)]
    seed: int = 0
    optimizer: Literal["sgd", "adagrad", "adam"] = "adam"
    lr: Annotated[float, Field(gt=0)] = 1e-2


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
        embeddings: Learnable rows; they need `embedding_folder`.
        embedding_folder: Where their files go.
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
    embeddings: tuple[EmbeddingConfig, ...] = ()
    embedding_folder: Path | None = None
    limits: Limits = Limits()

    @property
    def ports(self) -> Mapping[int, int]:
        """Port of every part that is to be served."""
        return self.parts if self.part is None else {self.part: self.port}

    def admitting(self, credentials: Credentials) -> Credentials:
        """The credentials as the store uses them: with TLS, unless it is switched off.

        Raises:
            SpecError: TLS is wanted, and there is no certificate.
        """
        if not self.tls:
            return replace(credentials, identity=None)
        if credentials.identity is None:
            raise SpecError(
                f"TLS is on, and {self.credentials} has no certificate",
                "issue one, or say tls: false",
            )
        return credentials


def load_config(path: str | os.PathLike[str]) -> StoreConfig:
    """Read the file.

    Raises:
        SpecError: It cannot be read, or something in it is wrong.
    """
    try:
        return StoreConfig.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}", "give a file") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SpecError(f"{path}: {where}: {first['msg']}", "see StoreConfig") from None


def shard_of(config: StoreConfig, number: int) -> Shard:
    """Open a part and make its embeddings.

    Raises:
        SpecError: The part, a column or a node type is not there.
    """
    graph = open_graph(config.graph)
    shard = open_shard(graph, number)
    rows = dict(shard.rows)
    part = graph.part(number)
    for wanted in config.embeddings:
        if config.embedding_folder is None:
            raise SpecError("there is no folder for embeddings", "set embedding_folder")
        if (wanted.node_type, wanted.column) in rows:
            raise SpecError(
                f"{wanted.node_type!r} has a column {wanted.column!r} already",
                "choose another name for the embedding",
            )
        node = graph.manifest.node_index(wanted.node_type)
        folder = config.embedding_folder / f"part-{number}" / f"node-{node}"
        embedding = create_embedding(
            folder,
            wanted.column,
            part.original_ids(wanted.node_type),
            wanted.dim,
            wanted.seed,
            SparseOptimizer(wanted.optimizer, wanted.lr),
        )
        rows[wanted.node_type, wanted.column] = Rows(
            part.start(wanted.node_type), embedding.values, "float32", embedding=embedding
        )
    return replace(shard, rows=rows)
