"""Learnable rows that live in a store: gradients come in, a sparse optimizer applies them.

Only rows that got a gradient change, and only their state is read. The rows lie in a file, so that
processes of the same machine map them instead of asking.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class SparseOptimizer:
    """How gradients change rows, as torch's optimizers do it.

    Attributes:
        kind: `sgd`, `adagrad` (Duchi et al., 2011) or `adam` (Kingma and Ba, 2015, as in torch's
            `SparseAdam`: moments of rows without a gradient do not decay).
        lr: Step size.
        betas: Decay of Adam's moments.
        eps: Keeps divisors from zero.
    """

    kind: Literal["sgd", "adagrad", "adam"] = "adam"
    lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    @property
    def num_states(self) -> int:
        """Numbers kept per weight."""
        return {"sgd": 0, "adagrad": 1, "adam": 2}[self.kind]

    def step(
        self, weights: np.ndarray, states: list[np.ndarray], gradients: np.ndarray, count: int
    ) -> None:
        """Change weights and states in place.

        Args:
            weights: Rows that got a gradient.
            states: Of the same rows.
            gradients: Of the same rows.
            count: How many steps were made, with this one.
        """
        if self.kind == "sgd":
            weights -= self.lr * gradients
            return
        if self.kind == "adagrad":
            states[0] += gradients * gradients
            weights -= self.lr * gradients / (np.sqrt(states[0]) + self.eps)
            return
        first, second = self.betas
        mean, square = states
        mean += (1 - first) * (gradients - mean)
        square += (1 - second) * (gradients * gradients - square)
        rate = self.lr * float(np.sqrt(1 - second**count)) / (1 - first**count)
        weights -= rate * mean / (np.sqrt(square) + self.eps)


class Embedding:
    """Rows of one column and the optimizer's state of them.

    Args:
        values: `float32`, a row per node; changed in place.
        optimizer: How gradients change rows.
        make_state: Makes zeros of a shape; a file's name tells states apart.
    """

    def __init__(
        self,
        values: np.ndarray,
        optimizer: SparseOptimizer,
        make_state: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        self.values = values
        self._optimizer = optimizer
        make = make_state or (lambda _: np.zeros_like(values))
        self._states = [make(i) for i in range(optimizer.num_states)]
        self._num_steps = 0
        self._lock = threading.Lock()

    def push(self, local: np.ndarray, gradients: np.ndarray) -> None:
        """Apply gradients; those of a row that appears twice are summed first.

        Args:
            local: Row numbers, in range.
            gradients: A row each.
        """
        rows, sums = sum_duplicates(local, gradients)
        with self._lock:
            self._num_steps += 1
            weights = self.values[rows]
            states = [state[rows] for state in self._states]
            self._optimizer.step(weights, states, sums, self._num_steps)
            self.values[rows] = weights
            for state, changed in zip(self._states, states, strict=True):
                state[rows] = changed


class Once:
    """Does what a client asks for a single time, though it may ask again after a lost answer.

    A client numbers what it asks upwards. Only numbers near its last one are known, and only those
    of clients that were here last.

    Args:
        max_clients: Of how many.
        window: How far back; what is older counts as done.
    """

    def __init__(self, max_clients: int = 4096, window: int = 1024) -> None:
        self._max_clients, self._window = max_clients, window
        self._lock = threading.Lock()
        self._clients: dict[str, _Done] = {}

    def do(self, client: str, number: int, work: Callable[[], None]) -> None:
        """Work, unless this client's number was done; waits if it is just being done."""
        with self._lock:
            # Put last: the first is whoever has not been here for longest.
            done = self._clients.pop(client) if client in self._clients else _Done()
            self._clients[client] = done
            while len(self._clients) > self._max_clients:
                del self._clients[next(iter(self._clients))]
        with done.lock:
            if number in done.numbers or number <= done.last - self._window:
                return
            work()
            done.numbers.add(number)
            done.last = max(done.last, number)
            if len(done.numbers) > 2 * self._window:
                done.numbers = {n for n in done.numbers if n > done.last - self._window}


class _Done:
    """What a client has asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.numbers: set[int] = set()
        self.last = 0


def sum_duplicates(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows without repetition, ascending, and the sum of each one's values."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
    if len(firsts) == 0:
        return ordered, values[order]
    return ordered[firsts], np.add.reduceat(values[order], firsts, axis=0)


def create_embedding(
    folder: Path, name: str, originals: np.ndarray, dim: int, seed: int, optimizer: SparseOptimizer
) -> Embedding:
    """Make the files of an embedding, with first values.

    A row follows from the seed and the node's original id alone, so that it does not depend on
    the partitioning: uniform between plus and minus `1 / sqrt(dim)`.

    Args:
        folder: Where `NAME.bin` and the optimizer's state go; what is there is overwritten.
        name: Of the column.
        originals: Original id of every row's node.
        dim: Numbers per row.
        seed: Of the first values.
        optimizer: How gradients change rows.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def zeros(file: str) -> np.ndarray:
        # Empty parts cannot be mapped.
        if len(originals) == 0:
            return np.zeros((0, dim), np.float32)
        shape = (len(originals), dim)
        return np.memmap(folder / file, np.float32, "w+", shape=shape).view(np.ndarray)

    values = zeros(f"{name}.bin")
    columns = np.arange(dim, dtype=np.uint64)
    for start in range(0, len(originals), _CHUNK_ROWS):
        ids = np.asarray(originals[start : start + _CHUNK_ROWS]).astype(np.uint64)
        drawn = _mix(_mix(ids + np.uint64(seed % 2**64))[:, None] + columns)
        unit = (drawn >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
        values[start : start + len(ids)] = unit / np.float32(np.sqrt(dim))
    return Embedding(values, optimizer, lambda i: zeros(f"{name}.state{i}.bin"))


def _mix(x: np.ndarray) -> np.ndarray:
    """Spread 64 bits: one round of splitmix64 (Steele et al., 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
