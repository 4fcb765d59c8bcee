"""Fewer rows between trainers: partial sums for destinations instead of rows of sources.

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
from headrace.training.full_graph.part import GraphPart, Ownership


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
    num = max(trainers) + 1
    offsets = {name: graph.offsets(name) for name in graph.node_types}
    ownership = Ownership(offsets, np.asarray(trainers))
    halo, sources, sums = (np.zeros((num, num), np.int64) for _ in range(3))
    for receiver in range(num):
        part = GraphPart(graph, ownership, receiver)
        senders, _ = part.halo(edge_type)
        ends = part.edge_index(edge_type).numpy()
        first = part.first_halo_row(edge_type)
        starts = np.searchsorted(senders, np.arange(num + 1))
        rows, destinations = ends[:, ends[0] >= first]
        rows = rows - first
        order = np.argsort(rows, kind="stable")
        rows, destinations = rows[order], destinations[order]
        bounds = np.searchsorted(rows, starts)
        for sender in range(num):
            edges = slice(bounds[sender], bounds[sender + 1])
            begin, end = starts[sender], starts[sender + 1]
            if begin == end:
                continue
            ids, right = np.unique(destinations[edges], return_inverse=True)
            indptr = np.searchsorted(rows[edges], np.arange(begin, end + 1))
            of_sources, of_sums = cover(indptr, right, len(ids))
            halo[receiver, sender] = end - begin
            sources[receiver, sender] = of_sources.sum()
            sums[receiver, sender] = of_sums.sum()
    return CoverSizes(halo, sources, sums)
