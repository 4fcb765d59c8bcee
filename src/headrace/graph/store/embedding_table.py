"""Embedding rows of a store, with a sparse optimizer.

Only rows with a gradient are read and changed. The rows are in files, which a restarted store
reopens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from headrace.core.values import Value
from headrace.graph.store.write_ahead_log import Change, WriteAheadLog
from headrace.linux.disk import reserve

COLUMN = r"[A-Za-z_][A-Za-z0-9_\-]{0,99}"
"""Valid embedding names; file names and state columns are derived from them."""

_CHUNK_ROWS = 1 << 16
_Beta = Annotated[float, Field(ge=0, lt=1)]


class EmbeddingSpec(Value):
    """Parameters of an embedding; all trainers must pass the same.

    Attributes:
        dim: Dimensions of a row.
        seed: Seed of the initial values.
        bound: Initial values are uniform in [-bound, bound]; None for `1 / sqrt(dim)`.
        optimizer: `sgd`, `adagrad` (Duchi et al., 2011) or `adam` (Kingma and Ba, 2015, as in
            torch's `SparseAdam`: moments of rows without a gradient do not decay).
        betas: Decay rates of Adam's moments.
        eps: Added to denominators.
        num_trainers: Number of trainers that push gradients.
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
        """Optimizer states per weight."""
        return {"sgd": 0, "adagrad": 1, "adam": 2}[self.optimizer]

    def step(
        self,
        weights: np.ndarray,
        states: Sequence[np.ndarray],
        gradients: np.ndarray,
        count: int,
        lr: float,
    ) -> None:
        """Update weights and states in place; `count` is the number of steps with this one."""
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
    """Rows of one embedding and their optimizer states.

    Attributes:
        num_rounds: Completed sync rounds.
        num_steps: Sync rounds with at least one gradient.
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
        """Complete a sync round: apply the summed gradients of all trainers to unique rows.

        `counts` is whether any trainer has gradients, possibly for another store's rows.
        """
        changed = [array[rows] for array in self._arrays]
        if counts:
            self.spec.step(changed[0], changed[1:], sums, self.num_steps + 1, lr)
        self._change(Change(self.num_rounds + 1, self.num_steps + counts, rows, changed))

    def put(self, rows: np.ndarray, arrays: Sequence[np.ndarray], num_steps: int) -> None:
        """Set rows and their states as of step `num_steps`."""
        self._change(Change(self.num_rounds, num_steps, rows, arrays))

    def _change(self, change: Change) -> None:
        if self._journal is not None:
            self._journal.append(change)
        self._make(change)

    def _make(self, change: Change) -> None:
        """Apply a change; idempotent, because a change holds the resulting rows."""
        for array, changed in zip(self._arrays, change.arrays, strict=True):
            array[change.rows] = changed
        self.num_rounds, self.num_steps = change.num_rounds, change.num_steps


def sum_duplicates(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unique rows, ascending, and the sum of each row's values in input order."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    if len(firsts) == 0:
        return ordered, values[order]
    return ordered[firsts], np.add.reduceat(values[order], firsts, axis=0)


def make_embedding(folder: Path | None, originals: np.ndarray, spec: EmbeddingSpec) -> Embedding:
    """Create an embedding with initial values; without a folder it is in memory.

    A row depends only on the seed and the original node id, not on the partitioning.
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
    """Open an embedding in a directory, at its last logged change."""
    return Embedding(spec, _arrays(folder, (num_rows, spec.dim), spec, "r+"), WriteAheadLog(folder))


def _arrays(
    folder: Path | None, shape: tuple[int, int], spec: EmbeddingSpec, mode: Literal["r+", "w+"]
) -> list[np.ndarray]:
    names = ["values", *(f"state{i}" for i in range(spec.num_states))]
    # Empty partitions cannot be memory-mapped.
    if folder is None or shape[0] == 0:
        return [np.zeros(shape, np.float32) for _ in names]
    paths = [folder / f"{name}.bin" for name in names]
    if mode == "w+":
        _reserve(paths, 4 * shape[0] * shape[1])
    return [np.memmap(path, np.float32, "r+", shape=shape).view(np.ndarray) for path in paths]


def _reserve(paths: Sequence[Path], num_bytes: int) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
    try:
        for path in paths:
            reserve(path, num_bytes)
    except OSError:
        for path in paths:
            path.unlink(missing_ok=True)
        raise


def _mix(x: np.ndarray) -> np.ndarray:
    """Hash 64 bits: one round of splitmix64 (Steele et al., 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
