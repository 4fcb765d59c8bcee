"""Who is whose neighbour, as flat arrays that may lie in memory or in mapped files."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Csc:
    """In-neighbours of all nodes of one edge type, by original ids.

    Attributes:
        indptr: `int64`; the in-edges of destination `v` are `indptr[v]` to `indptr[v + 1]`.
        indices: `int32` or `int64`; sources, ascending for each destination.
        edge_ids: Row numbers in the edge table, ascending among parallel edges; or none if the
            table keeps no ids.
    """

    indptr: np.ndarray
    indices: np.ndarray
    edge_ids: np.ndarray | None


@dataclass(frozen=True)
class Adjacency:
    """All types as one undirected graph, which is what partitioners see.

    Node types follow each other: node `i` of type `t` is `offsets[t] + i`. Every pair of neighbours
    appears from both sides, once each; there are no loops.

    Attributes:
        indptr: `int64`.
        indices: `int32` or `int64`; ascending for each node.
        weights: `int32`; how many edges a pair stands for; or none if it is always one, or if both
            directions of every edge are there and each counts for one.
    """

    indptr: np.ndarray
    indices: np.ndarray
    weights: np.ndarray | None = None

    @property
    def num_nodes(self) -> int:
        """How many nodes."""
        return len(self.indptr) - 1

    @property
    def num_arcs(self) -> int:
        """Pairs of neighbours, counted from both sides."""
        return len(self.indices)
