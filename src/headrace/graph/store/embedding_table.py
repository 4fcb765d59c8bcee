"""Learnable rows that live in a store: gradients come in, a sparse optimizer applies them.

Only rows that got a gradient change, and only their state is read. The rows lie in files, which are
found again by a store that is started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from headrace.core.values import Value
from headrace.graph.store.write_ahead_log import Change, WriteAheadLog

COLUMN = r"[A-Za-z_][A-Za-z0-9_\-]{0,99}"
"""What an embedding may be called: its files and its optimizer's state have names made of that."""

_CHUNK_ROWS = 1 << 16
_Beta = Annotated[float, Field(ge=0, lt=1)]


class EmbeddingSpec(Value):
    """What all trainers must say alike of an embedding.

    Attributes:
        dim: Numbers per row.
        seed: Of the first values.
        bound: First values are uniform between minus and plus this; none for `1 / sqrt(dim)`.
        optimizer: `sgd`, `adagrad` (Duchi et al., 2011) or `adam` (Kingma and Ba, 2015, as in
            torch's `SparseAdam`: moments of rows without a gradient do not decay).
        betas: Decay of Adam's moments.
        eps: Keeps divisors from zero.
        num_trainers: How many bring gradients.
    """

    dim: Annotated[int, Field(ge=1, le=65536)]
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    bound: Annotated[float, Field(ge=0)] | None = None
    optimizer: Literal["sgd", "adagrad", "adam"] = "adam"
    betas: tuple[_Beta, _Beta] = (0.9, 0.999)
    eps: Annotated[float, Field(ge=0)] = 1e-8
    num_trainers: Annotated[int, Field(ge=1, le=1 << 16)] = 1

    @property
    def num_states(self) -> int:
        """Numbers kept per weight."""
        return {"sgd": 0, "adagrad": 1, "adam": 2}[self.optimizer]

    def step(
        self,
        weights: np.ndarray,
        states: Sequence[np.ndarray],
        gradients: np.ndarray,
        count: int,
        lr: float,
    ) -> None:
        """Change weights and states in place.

        Args:
            weights: Rows that got a gradient.
            states: Of the same rows.
            gradients: Of the same rows.
            count: How many steps were made, with this one.
            lr: Step size.
        """
        if self.optimizer == "sgd":
            weights -= lr * gradients
            return
        if self.optimizer == "adagrad":
            states[0][:] += gradients * gradients
            weights -= lr * gradients / (np.sqrt(states[0]) + self.eps)
            return
        first, second = self.betas
        mean, square = states
        mean += (1 - first) * (gradients - mean)
        square += (1 - second) * (gradients * gradients - square)
        rate = lr * float(np.sqrt(1 - second**count)) / (1 - first**count)
        weights -= rate * mean / (np.sqrt(square) + self.eps)


class Embedding:
    """Rows of one column and the optimizer's state of them.

    Args:
        spec: How they are learnt.
        arrays: The rows and each state, `float32`; changed in place.
        journal: Where changes are noted first; none if nobody could go on after an end.

    Attributes:
        num_rounds: How often trainers have brought gradients.
        num_steps: How often there were any.
    """

    def __init__(
        self,
        spec: EmbeddingSpec,
        arrays: Sequence[np.ndarray],
        journal: WriteAheadLog | None = None,
    ) -> None:
        self.spec = spec
        self.values, self.states = arrays[0], tuple(arrays[1:])
        self.num_rounds = self.num_steps = 0
        self._arrays, self._journal = tuple(arrays), journal
        last = None if journal is None else journal.last(spec.dim, len(arrays))
        if last is not None:
            self._make(last)

    def step(self, rows: np.ndarray, sums: np.ndarray, lr: float, counts: bool = True) -> None:
        """Make a round: apply gradients of all trainers.

        Args:
            rows: Row numbers, in range, none twice.
            sums: Of the gradients of each.
            lr: Step size.
            counts: Whether any trainer has gradients, be it for rows of another store.
        """
        changed = [array[rows] for array in self._arrays]
        if counts:
            self.spec.step(changed[0], changed[1:], sums, self.num_steps + 1, lr)
        self._change(Change(self.num_rounds + 1, self.num_steps + counts, rows, changed))

    def put(self, rows: np.ndarray, arrays: Sequence[np.ndarray], num_steps: int) -> None:
        """Set rows and their states, as they were after some number of steps."""
        self._change(Change(self.num_rounds, num_steps, rows, arrays))

    def _change(self, change: Change) -> None:
        if self._journal is not None:
            self._journal.note(change)
        self._make(change)

    def _make(self, change: Change) -> None:
        """Can be done twice: a change says what is there after it."""
        for array, changed in zip(self._arrays, change.arrays, strict=True):
            array[change.rows] = changed
        self.num_rounds, self.num_steps = change.num_rounds, change.num_steps


def sum_duplicates(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows without repetition, ascending, and the sum of each one's values, in their order."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    if len(firsts) == 0:
        return ordered, values[order]
    return ordered[firsts], np.add.reduceat(values[order], firsts, axis=0)


def make_embedding(folder: Path | None, originals: np.ndarray, spec: EmbeddingSpec) -> Embedding:
    """Make an embedding with first values.

    A row follows from the seed and the node's original id alone, so that it does not depend on
    the partitioning.

    Args:
        folder: For its files; what is there is overwritten. None for memory.
        originals: Original id of every row's node.
        spec: What it is like.
    """
    shape = (len(originals), spec.dim)
    arrays = _arrays(folder, shape, spec, "w+")
    bound = 1 / float(np.sqrt(spec.dim)) if spec.bound is None else spec.bound
    columns = np.arange(spec.dim, dtype=np.uint64)
    for start in range(0, len(originals), _CHUNK_ROWS):
        ids = np.asarray(originals[start : start + _CHUNK_ROWS]).astype(np.uint64)
        drawn = _mix(_mix(ids + np.uint64(spec.seed))[:, None] + columns)
        unit = (drawn >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
        arrays[0][start : start + len(ids)] = unit * np.float32(bound)
    if folder is None:
        return Embedding(spec, arrays)
    journal = WriteAheadLog(folder)
    journal.clear()
    return Embedding(spec, arrays, journal)


def open_embedding(folder: Path, num_rows: int, spec: EmbeddingSpec) -> Embedding:
    """The embedding that was made in a folder, as it is after the last change that was noted."""
    return Embedding(spec, _arrays(folder, (num_rows, spec.dim), spec, "r+"), WriteAheadLog(folder))


def _arrays(
    folder: Path | None, shape: tuple[int, int], spec: EmbeddingSpec, mode: Literal["r+", "w+"]
) -> list[np.ndarray]:
    names = ["values", *(f"state{i}" for i in range(spec.num_states))]
    # Empty parts cannot be mapped.
    if folder is None or shape[0] == 0:
        return [np.zeros(shape, np.float32) for _ in names]
    return [
        np.memmap(folder / f"{name}.bin", np.float32, mode, shape=shape).view(np.ndarray)
        for name in names
    ]


def _mix(x: np.ndarray) -> np.ndarray:
    """Spread 64 bits: one round of splitmix64 (Steele et al., 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
