"""Embeddings of a store: creation, and gradient pushes in sync rounds."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from headrace.core.errors import SpecError
from headrace.core.values import CheckedFile
from headrace.graph.store.embedding_table import (
    COLUMN,
    Embedding,
    EmbeddingSpec,
    make_embedding,
    open_embedding,
    sum_duplicates,
)
from headrace.graph.store.shard import Shard, ShardRows
from headrace.linux.atomic_write import atomic_write
from headrace.rpc.sync_rounds import SyncRounds

WAIT_S = 4.0
"""How long a gradient push waits for the other trainers before the reply."""

MAX_PIECES = 1 << 12
_MAX_EMBEDDINGS = 64
_FILE = "embedding.json"


@dataclass(frozen=True)
class GradientPush:
    """A piece of a trainer's gradients in a sync round; rounds start at 1, pieces at 0.

    Attributes:
        has_any: Whether this trainer has gradients for any store.
        lr: Learning rate; that of rank 0 is applied.
        rows: Row numbers, ascending; each row is in one piece only.
    """

    rank: int
    round: int
    piece: int
    num_pieces: int
    has_any: bool
    lr: float
    rows: np.ndarray
    gradients: np.ndarray


class EmbeddingService(SyncRounds[GradientPush]):
    """Optimizer shard of one embedding."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__(embedding.spec.num_trainers)
        self.embedding = embedding

    @property
    def num_rounds(self) -> int:
        """Number of completed sync rounds."""
        return self.embedding.num_rounds

    def push(self, gradient_push: GradientPush, timeout_s: float = WAIT_S) -> bool:
        """Push gradients and return whether the sync round is complete; the last push applies it.

        The last piece of a trainer waits up to `timeout_s` for the other trainers. On timeout all
        its pieces must be pushed again.

        Raises:
            SpecError: The round is not the next one, or the piece is invalid.
        """
        rank, piece, num_pieces = gradient_push.rank, gradient_push.piece, gradient_push.num_pieces
        with self._changed:
            if self._is_new(rank, gradient_push.round):
                self._check(gradient_push)
                self._collect(rank, gradient_push, piece, num_pieces)
        is_last = piece + 1 == num_pieces
        return self._wait(lambda: self._is_done(gradient_push.round), timeout_s if is_last else 0)

    def put(self, rows: np.ndarray, arrays: list[np.ndarray], num_steps: int) -> None:
        """Set rows and their states."""
        with self._changed:
            self.embedding.put(rows, arrays, num_steps)

    def _check(self, gradient_push: GradientPush) -> None:
        rank, rows = gradient_push.rank, gradient_push.rows
        if rank >= self._num_trainers:
            raise SpecError(
                f"rank {rank} pushed gradients, there are {self._num_trainers} trainers",
                "create the embedding on all trainers",
            )
        if len(rows) > 1 and not (np.diff(rows) > 0).all():
            raise SpecError("rows of gradients are not ascending", "sum duplicate rows first")
        pieces = {**self._pushes.get(rank, {}), gradient_push.piece: gradient_push}
        if sum(len(each.rows) for each in pieces.values()) > len(self.embedding.values):
            raise SpecError(f"rank {rank} pushed more rows than there are", "push each row once")

    def _apply(self, pushes: list[GradientPush]) -> None:
        rows, sums = sum_duplicates(
            np.concatenate([each.rows for each in pushes]),
            np.concatenate([each.gradients for each in pushes]),
        )
        self.embedding.step(rows, sums, pushes[0].lr, any(each.has_any for each in pushes))


class _Metadata(CheckedFile):
    """Metadata of an embedding; written after its files."""

    version: Annotated[int, Field(ge=1, le=1)] = 1
    node_type: str
    column: str
    spec: EmbeddingSpec


class Embeddings:
    """All embeddings of one graph partition.

    A restarted process reopens their files in `folder`; without a folder they are in memory.
    """

    def __init__(self, shard: Shard, folder: Path | None = None) -> None:
        self._shard, self._folder = shard, folder
        self._lock = threading.Lock()
        self._optimizer_shards: dict[tuple[str, str], EmbeddingService] = {}
        self._rows: dict[tuple[str, str], ShardRows] = {}
        for path, metadata in self._stored():
            nodes = shard.rows[metadata.node_type, "ids"]
            made = open_embedding(path, len(nodes.values), metadata.spec)
            self._add(metadata.node_type, metadata.column, nodes.first, made)

    def make(self, node_type: str, column: str, spec: EmbeddingSpec) -> None:
        """Create an embedding, unless another trainer has created it.

        Raises:
            SpecError: The node type does not exist, the name is invalid or in use, or the spec
                differs from another trainer's.
        """
        nodes = self._shard.rows.get((node_type, "ids"))
        if nodes is None:
            raise SpecError(f"there are no nodes of type {node_type[:40]!r}", "name a node type")
        if not re.fullmatch(COLUMN, column):
            raise SpecError(
                f"an embedding cannot be called {column[:40]!r}", "use letters, digits, _ and -"
            )
        if (node_type, column) in self._shard.rows:
            raise SpecError(
                f"{node_type!r} has a column {column!r} already",
                "choose another name for the embedding",
            )
        with self._lock:
            if (existing := self._optimizer_shards.get((node_type, column))) is not None:
                _check_same(column, spec, existing.embedding.spec)
                return
            if len(self._optimizer_shards) == _MAX_EMBEDDINGS:
                raise SpecError(f"there are {_MAX_EMBEDDINGS} embeddings", "create fewer")
            path = self._folder and self._folder / str(len(self._optimizer_shards))
            if path is not None:
                path.mkdir(parents=True, exist_ok=True)
            made = make_embedding(path, nodes.array, spec)
            if path is not None:
                metadata = _Metadata(node_type=node_type, column=column, spec=spec)
                atomic_write(path / _FILE, metadata.to_text())
            self._add(node_type, column, nodes.first, made)

    def rows(self, node_type: str, column: str) -> ShardRows | None:
        """Rows of an embedding or of its optimizer state (`NAME.state0`), for reading."""
        return self._rows.get((node_type, column))

    def optimizer_shard(self, node_type: str, column: str) -> EmbeddingService:
        """Optimizer shard of an embedding; raise `SpecError` if it does not exist."""
        existing = self._optimizer_shards.get((node_type, column))
        if existing is None:
            raise SpecError(
                f"{node_type[:40]!r} has no embedding {column[:40]!r}", "create it first"
            )
        return existing

    def close(self) -> None:
        """Release all waiting pushes."""
        for each in self._optimizer_shards.values():
            each.close()

    def _add(self, node_type: str, column: str, first: int, embedding: Embedding) -> None:
        self._optimizer_shards[node_type, column] = EmbeddingService(embedding)
        self._rows[node_type, column] = ShardRows(first, embedding.values, "float32")
        for number, state in enumerate(embedding.states):
            self._rows[node_type, f"{column}.state{number}"] = ShardRows(first, state, "float32")

    def _stored(self) -> Iterator[tuple[Path, _Metadata]]:
        """Completely written embeddings, in creation order."""
        for number in range(_MAX_EMBEDDINGS):
            path = None if self._folder is None else self._folder / str(number)
            if path is None or not (path / _FILE).exists():
                return
            text = (path / _FILE).read_bytes()
            try:
                yield path, _Metadata.model_validate_json(text)
            except ValueError:
                raise SpecError(
                    f"{path / _FILE} is damaged", "run again, which resumes from a checkpoint"
                ) from None


def _check_same(column: str, spec: EmbeddingSpec, existing: EmbeddingSpec) -> None:
    differing = [
        f"{name} {getattr(spec, name)} and {getattr(existing, name)}"
        for name in type(spec).model_fields
        if getattr(spec, name) != getattr(existing, name)
    ]
    if differing:
        raise SpecError(
            f"the embedding {column!r} was requested with {', '.join(differing)}",
            "pass the same spec on all trainers, and create it once",
        )
