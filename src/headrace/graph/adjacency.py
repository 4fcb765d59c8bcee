"""Compressed adjacency arrays, in memory or memory-mapped."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Csc:
    """In-neighbours of all nodes of one edge type, by original ids.

    Attributes:
        indptr: `int64`; the in-edges of destination `v` are `indptr[v]` to `indptr[v + 1]`.
        indices: `int32` or `int64`; sources, ascending for each destination.
        edge_ids: Row numbers in the edge table, ascending among parallel edges; `None` if the
            table does not keep ids.
    """

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray | None


@dataclass(frozen=True)
class Adjacency:
    """All types combined into one undirected graph, the input of partitioners.

    Node ids of all types are concatenated: node `i` of type `t` is `offsets[t] + i`. Each pair of
    neighbours is stored in both directions, once each; there are no self-loops.

    Attributes:
        indptr: `int64`.
        indices: `int32` or `int64`; ascending for each node.
        weights: `int32`; number of edges that each arc represents; `None` if all are equal.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_arcs(self) -> int:
        """Number of arcs; each pair of neighbours counts twice."""
        return len(self.indices)
