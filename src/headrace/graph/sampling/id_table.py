"""Tables from ids of a graph to rows of a batch."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from headrace.graph.kernels import id_table

# 32 MB in every sampler process; a batch of a larger graph is worth less memory than that.
DENSE_LIMIT = 1 << 23
_LAST_BASE = np.iinfo(np.int32).max


class RowTable(Protocol):
    """Gives rows to ids in the order in which they are met; one table serves many batches.

    The array `nodes` is the caller's and has room for one more than all that may come.
    """

    def begin(self, seeds: np.ndarray) -> None:
        """Forget the last batch; seeds get rows 0, 1, ... and a repeated one keeps its first."""
        ...

    def rows(self, ids: np.ndarray, nodes: np.ndarray, num_nodes: int, rows: np.ndarray) -> int:
        """Look up ids and enter new ones.

        Args:
            ids: To be relabelled.
            nodes: Known ids by row; new ones are added.
            num_nodes: How many are known.
            rows: Out: rows of `ids`.

        Returns:
            How many are known now.
        """
        ...


class DenseTable:
    """An entry per node of the graph.

    Args:
        num_ids: How many nodes the graph has.
    """

    def __init__(self, num_ids: int) -> None:
        self._table = np.full(num_ids, -1, np.int32)
        self._base = 0
        self._used = 0

    def begin(self, seeds: np.ndarray) -> None:
        """Forget the last batch and enter seeds."""
        self._base += self._used
        if self._base + len(self._table) + len(seeds) > _LAST_BASE:
            self._table.fill(-1)
            self._base = 0
        id_table.place_dense(seeds, self._table, self._base)
        self._used = len(seeds)

    def rows(self, ids: np.ndarray, nodes: np.ndarray, num_nodes: int, rows: np.ndarray) -> int:
        """Look up ids and enter new ones."""
        self._used = int(
            id_table.relabel_dense(ids, self._table, self._base, nodes, num_nodes, rows)
        )
        return self._used


class HashTable:
    """Slots for the nodes of a batch."""

    def __init__(self) -> None:
        self._keys = np.empty(0, np.int64)
        self._entries = np.empty(0, np.int64)
        self._base = 0
        self._used = 0

    def begin(self, seeds: np.ndarray) -> None:
        """Forget the last batch and enter seeds."""
        self._base += self._used
        self._reserve(len(seeds))
        id_table.place_hash(seeds, self._keys, self._entries, self._base)
        self._used = len(seeds)

    def rows(self, ids: np.ndarray, nodes: np.ndarray, num_nodes: int, rows: np.ndarray) -> int:
        """Look up ids and enter new ones."""
        if self._reserve(num_nodes + len(ids)):
            id_table.place_hash(nodes[:num_nodes], self._keys, self._entries, self._base)
        self._used = int(
            id_table.relabel_hash(
                ids, self._keys, self._entries, self._base, nodes, num_nodes, rows
            )
        )
        return self._used

    def _reserve(self, num_ids: int) -> bool:
        # Half of the slots stay free, which keeps probes short.
        num_slots = 1 << (2 * max(num_ids, 8) - 1).bit_length()
        if num_slots <= len(self._keys):
            return False
        self._keys = np.empty(num_slots, np.int64)
        self._entries = np.full(num_slots, -1, np.int64)
        self._base = 0
        return True


def table_for(num_ids: int, dense_limit: int = DENSE_LIMIT) -> RowTable:
    """The faster table where it is small enough."""
    return DenseTable(num_ids) if num_ids <= dense_limit else HashTable()
