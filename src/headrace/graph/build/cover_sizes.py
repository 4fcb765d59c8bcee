"""Rows that trainers of the full graph send each other in a layer.

If an aggregation is a sum, each edge between two trainers can be served by the row of its source,
or be part of a sum for its destination that the source's trainer computes. The fewest rows are a
minimum vertex cover of the edges between the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.kernels.vertex_cover import cover
from headrace.graph.schema import EdgeType


@dataclass(frozen=True)
class CoverSizes:
    """Rows between trainers, by receiver and sender.

    Attributes:
        halo: Rows of sources, without partial sums.
        sources: Rows of sources in the cover.
        sums: Partial sums in the cover.
    """

    halo: np.ndarray
    sources: np.ndarray
    sums: np.ndarray

    @property
    def total(self) -> np.ndarray:
        """All rows of the cover."""
        rows: np.ndarray = self.sources + self.sums
        return rows


def cover_sizes(
    graph: PartitionedGraph, trainers: Sequence[int], edge_type: EdgeType
) -> CoverSizes:
    """Count rows of an exchange with and without partial sums.

    Args:
        graph: The graph, with all its partitions.
        trainers: Trainer of each partition.
        edge_type: The edge type.
    """
    owners, num = np.asarray(trainers), max(trainers) + 1
    halo, sources, sums = (np.zeros((num, num), np.int64) for _ in range(3))
    for receiver in range(num):
        starts, ends = _in_edges(graph, np.flatnonzero(owners == receiver).tolist(), edge_type)
        senders = owners[graph.owner(edge_type[0], starts)]
        for sender in set(np.unique(senders).tolist()) - {receiver}:
            chosen = senders == sender
            left_ids, left = np.unique(starts[chosen], return_inverse=True)
            right_ids, right = np.unique(ends[chosen], return_inverse=True)
            order = np.argsort(left, kind="stable")
            indptr = np.searchsorted(left[order], np.arange(len(left_ids) + 1))
            of_sources, of_sums = cover(indptr, right[order], len(right_ids))
            halo[receiver, sender] = len(left_ids)
            sources[receiver, sender] = of_sources.sum()
            sums[receiver, sender] = of_sums.sum()
    return CoverSizes(halo, sources, sums)


def _in_edges(
    graph: PartitionedGraph, parts: Sequence[int], edge_type: EdgeType
) -> tuple[np.ndarray, np.ndarray]:
    """New ids of the sources and destinations of all edges that end in some partitions."""
    starts, ends = [], []
    for part in map(graph.part, parts):
        first = part.start(edge_type[2])
        own = np.arange(first, first + part.num_nodes(edge_type[2]))
        starts.append(part.indices(edge_type).astype(np.int64))
        ends.append(np.repeat(own, np.diff(part.indptr(edge_type))))
    return np.concatenate(starts), np.concatenate(ends)
