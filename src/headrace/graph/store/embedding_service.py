"""The embeddings of a store: trainers have them made, and bring gradients round after round.

Everything that is asked may be asked again, as happens when a connection breaks or the store is
started again: what has been done is not done twice.
"""

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

WAIT_S = 4.0
"""How long a trainer that brings gradients is kept waiting for the others before it is answered."""

MAX_PIECES = 1 << 12
_MAX_EMBEDDINGS = 64
_FILE = "embedding.json"


@dataclass(frozen=True)
class GradientPush:
    """A piece of what a trainer brings to a round.

    Attributes:
        rank: Who brings it.
        round: Number of the round, from 1.
        piece: Number of the piece, from 0 ...
        num_pieces: ... and how many there are.
        has_any: Whether this trainer has gradients for any store.
        lr: Step size; that of rank 0 counts.
        rows: Row numbers, ascending; none is in two pieces.
        gradients: Of each row.
    """

    rank: int
    round: int
    piece: int
    num_pieces: int
    has_any: bool
    lr: float
    rows: np.ndarray
    gradients: np.ndarray


class EmbeddingService:
    """One embedding, to which all trainers bring gradients; threads of all of them share it.

    Args:
        embedding: The rows.
    """

    def __init__(self, embedding: Embedding) -> None:
        self.embedding = embedding
        self._changed = threading.Condition()
        self._gradient_pushes: dict[int, dict[int, GradientPush]] = {}
        self._is_closed = False

    def push(self, gradient_push: GradientPush, timeout_s: float = WAIT_S) -> bool:
        """Bring gradients; whoever is last makes the round.

        Args:
            gradient_push: A piece. With the last one a trainer waits for the others.
            timeout_s: For how long; if the round is not made then, all pieces are to be brought
                again.

        Returns:
            Whether the round is made.

        Raises:
            SpecError: It is not the turn of this round, or the piece cannot be right.
        """
        embedding, number = self.embedding, gradient_push.round
        with self._changed:
            if number <= embedding.num_rounds:
                return True
            self._check(gradient_push)
            self._gradient_pushes.setdefault(gradient_push.rank, {})[gradient_push.piece] = (
                gradient_push
            )
            if all(self._is_here(rank) for rank in range(embedding.spec.num_trainers)):
                self._make()
                self._changed.notify_all()
            elif gradient_push.piece + 1 == gradient_push.num_pieces:
                self._changed.wait_for(
                    lambda: embedding.num_rounds >= number or self._is_closed, timeout_s
                )
            return embedding.num_rounds >= number

    def put(self, rows: np.ndarray, arrays: list[np.ndarray], num_steps: int) -> None:
        """Set rows and their states."""
        with self._changed:
            self.embedding.put(rows, arrays, num_steps)

    def close(self) -> None:
        """Let nobody wait any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _check(self, gradient_push: GradientPush) -> None:
        done, spec = self.embedding.num_rounds, self.embedding.spec
        if gradient_push.round != done + 1:
            raise SpecError(
                f"rank {gradient_push.rank} pushed gradients of step {gradient_push.round}, "
                f"{done} are done",
                "see that all trainers call step() as often",
            )
        if gradient_push.rank >= spec.num_trainers:
            raise SpecError(
                f"rank {gradient_push.rank} pushed gradients, "
                f"there are {spec.num_trainers} trainers",
                "make the embedding on all trainers",
            )
        rows = gradient_push.rows
        if len(rows) > 1 and not (np.diff(rows) > 0).all():
            raise SpecError("rows of gradients are not ascending", "sum those of a row first")
        others = {**self._gradient_pushes.get(gradient_push.rank, {})}
        others.pop(gradient_push.piece, None)
        if sum(len(each.rows) for each in others.values()) + len(rows) > len(self.embedding.values):
            raise SpecError(
                f"rank {gradient_push.rank} brings more rows than there are", "bring none twice"
            )

    def _is_here(self, rank: int) -> bool:
        pieces = list(self._gradient_pushes.get(rank, {}).values())
        return bool(pieces) and len(pieces) == pieces[0].num_pieces

    def _make(self) -> None:
        """Sum in the order of ranks, whoever came first."""
        first = self._gradient_pushes[0][0]
        pieces = [
            self._gradient_pushes[rank][number]
            for rank in sorted(self._gradient_pushes)
            for number in sorted(self._gradient_pushes[rank])
        ]
        self._gradient_pushes.clear()
        rows, sums = sum_duplicates(
            np.concatenate([each.rows for each in pieces]),
            np.concatenate([each.gradients for each in pieces]),
        )
        self.embedding.step(rows, sums, first.lr, any(each.has_any for each in pieces))


class _Kept(CheckedFile):
    """What an embedding is, beside its files; written last."""

    version: Annotated[int, Field(ge=1, le=1)] = 1
    node_type: str
    column: str
    spec: EmbeddingSpec


class Embeddings:
    """All embeddings of one part.

    Args:
        shard: The part.
        folder: For their files; what an earlier process made there is found again. None to keep
            them in memory.
    """

    def __init__(self, shard: Shard, folder: Path | None = None) -> None:
        self._shard, self._folder = shard, folder
        self._lock = threading.Lock()
        self._learning: dict[tuple[str, str], EmbeddingService] = {}
        self._rows: dict[tuple[str, str], ShardRows] = {}
        for path, kept in self._kept():
            nodes = shard.rows[kept.node_type, "ids"]
            made = open_embedding(path, len(nodes.values), kept.spec)
            self._add(kept.node_type, kept.column, nodes.first, made)

    def make(self, node_type: str, column: str, spec: EmbeddingSpec) -> None:
        """Make an embedding, if no other trainer has had it made.

        Raises:
            SpecError: There are no such nodes, the name is taken or cannot be one, or another
                trainer has said otherwise.
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
            if (there := self._learning.get((node_type, column))) is not None:
                _check_same(column, spec, there.embedding.spec)
                return
            if len(self._learning) == _MAX_EMBEDDINGS:
                raise SpecError(f"there are {_MAX_EMBEDDINGS} embeddings", "make fewer")
            path = self._folder and self._folder / str(len(self._learning))
            if path is not None:
                path.mkdir(parents=True, exist_ok=True)
            made = make_embedding(path, nodes.values, spec)
            if path is not None:
                kept = _Kept(node_type=node_type, column=column, spec=spec)
                partial = path / f".{_FILE}"
                partial.write_text(kept.to_text(), encoding="utf-8")
                partial.replace(path / _FILE)
            self._add(node_type, column, nodes.first, made)

    def rows(self, node_type: str, column: str) -> ShardRows | None:
        """Rows of an embedding, or of its optimizer's state (`NAME.state0`), to be read."""
        return self._rows.get((node_type, column))

    def learning(self, node_type: str, column: str) -> EmbeddingService:
        """An embedding, to be changed.

        Raises:
            SpecError: There is none of this name.
        """
        there = self._learning.get((node_type, column))
        if there is None:
            raise SpecError(
                f"{node_type[:40]!r} has no learnt rows {column[:40]!r}", "have them made first"
            )
        return there

    def close(self) -> None:
        """Let nobody wait any more."""
        for each in self._learning.values():
            each.close()

    def _add(self, node_type: str, column: str, first: int, embedding: Embedding) -> None:
        self._learning[node_type, column] = EmbeddingService(embedding)
        self._rows[node_type, column] = ShardRows(first, embedding.values, "float32")
        for number, state in enumerate(embedding.states):
            self._rows[node_type, f"{column}.state{number}"] = ShardRows(first, state, "float32")

    def _kept(self) -> Iterator[tuple[Path, _Kept]]:
        """Those that were made as a whole, in the order in which they were."""
        for number in range(_MAX_EMBEDDINGS):
            path = None if self._folder is None else self._folder / str(number)
            if path is None or not (path / _FILE).exists():
                return
            text = (path / _FILE).read_bytes()
            try:
                yield path, _Kept.model_validate_json(text)
            except ValueError:
                raise SpecError(
                    f"{path / _FILE} is damaged", "run again, which resumes from a checkpoint"
                ) from None


def _check_same(column: str, said: EmbeddingSpec, there: EmbeddingSpec) -> None:
    differing = [
        f"{name} {getattr(said, name)} and {getattr(there, name)}"
        for name in type(said).model_fields
        if getattr(said, name) != getattr(there, name)
    ]
    if differing:
        raise SpecError(
            f"the embedding {column!r} was asked for with {', '.join(differing)}",
            "say the same on all trainers, and make it once",
        )
