"""Tables that map node ids of the graph to rows of a batch."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from headrace.graph.kernels import id_table

# 32 MB in every sampler process; larger graphs use a hash table per batch.
DENSE_LIMIT = 1 << 23
_LAST_BASE = np.iinfo(np.int32).max


class RowTable(Protocol):
    """Assigns rows to ids in order of appearance; reused for many batches.

    The caller's array `nodes` must have capacity for all new ids plus one.
    """

    def begin(self, seeds: np.ndarray) -> None:
        """Start a batch; seeds get rows 0, 1, ..., a repeated one maps to its first."""
        ...

    def rows(self, ids: np.ndarray, nodes: np.ndarray, num_nodes: int, rows: np.ndarray) -> int:
        """Write the rows of `ids` to `rows` and return the number of rows.

        New ids are appended to `nodes`, of which the first `num_nodes` are in use.
        """
        ...


class DenseTable:
    """Table with an entry per node of the graph."""

    def __init__(self, num_ids: int) -> None:
        self._table = np.full(num_ids, -1, np.int32)
        self._base = 0
        self._used = 0

    def begin(self, seeds: np.ndarray) -> None:
        """Start a batch with its seeds."""
        self._base += self._used
        if self._base + len(self._table) + len(seeds) > _LAST_BASE:
            self._table.fill(-1)
            self._base = 0
        id_table.place_dense(seeds, self._table, self._base)
        self._used = len(seeds)

    def rows(self, ids: np.ndarray, nodes: np.ndarray, num_nodes: int, rows: np.ndarray) -> int:
        """Look up ids and add new ones."""
        self._used = int(
            id_table.relabel_dense(ids, self._table, self._base, nodes, num_nodes, rows)
        )
        return self._used


class HashTable:
    """Hash table of the nodes of a batch."""

    def __init__(self) -> None:
        self._keys = np.empty(0, np.int64)
        self._entries = np.empty(0, np.int64)
        self._base = 0
        self._used = 0

    def begin(self, seeds: np.ndarray) -> None:
        """Start a batch with its seeds."""
        self._base += self._used
        self._reserve(len(seeds))
        id_table.place_hash(seeds, self._keys, self._entries, self._base)
        self._used = len(seeds)

    def rows(self, ids: np.ndarray, nodes: np.ndarray, num_nodes: int, rows: np.ndarray) -> int:
        """Look up ids and add new ones."""
        if self._reserve(num_nodes + len(ids)):
            id_table.place_hash(nodes[:num_nodes], self._keys, self._entries, self._base)
        self._used = int(
            id_table.relabel_hash(
                ids, self._keys, self._entries, self._base, nodes, num_nodes, rows
            )
        )
        return self._used

    def _reserve(self, num_ids: int) -> bool:
        # A load factor of at most 1/2 keeps probes short.
        num_slots = 1 << (2 * max(num_ids, 8) - 1).bit_length()
        if num_slots <= len(self._keys):
            return False
        self._keys = np.empty(num_slots, np.int64)
        self._entries = np.full(num_slots, -1, np.int64)
        self._base = 0
        return True


def table_for(num_ids: int, dense_limit: int = DENSE_LIMIT) -> RowTable:
    """The dense table, which is faster, if it is small enough."""
    return DenseTable(num_ids) if num_ids <= dense_limit else HashTable()
