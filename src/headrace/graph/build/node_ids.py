"""New node ids: contiguous per partition and, within a partition, per second-level cluster."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.build.csc import id_dtype
from headrace.graph.kernels.writing import count_groups, number_nodes
from headrace.graph.schema import GraphSource


@dataclass(frozen=True)
class NodeIds:
    """New ids of one node type.

    Attributes:
        new_ids: By original id; `int32` if they fit, else `int64`.
        bounds: First id of each cluster of each partition, and the end of its last cluster:
            `(partitions, clusters + 1)`.
    """

    new_ids: np.ndarray
    bounds: np.ndarray

    @property
    def offsets(self) -> np.ndarray:
        """First id of each partition, followed by the number of nodes."""
        return np.append(self.bounds[:, 0], self.bounds[-1, -1])


def number(
    source: GraphSource, parts: np.ndarray, clusters: np.ndarray | None, num_parts: int
) -> tuple[NodeIds, ...]:
    """Number the nodes of every type by partition, then cluster, then original id.

    Args:
        source: The graph.
        parts: Partition of every node, all types concatenated.
        clusters: Cluster of every node within its partition; `None` for one per partition.
        num_parts: Number of partitions.
    """
    if num_parts < 1:
        raise SpecError(f"{num_parts} partitions requested", "request at least 1")
    if num_parts > source.num_nodes:
        raise SpecError(
            f"{num_parts} partitions requested, but the graph has {source.num_nodes} nodes",
            "request fewer partitions",
        )
    _check_assignment("parts", parts, source.num_nodes, num_parts)
    num_clusters = 1
    if clusters is not None:
        num_clusters = int(clusters.max(initial=0)) + 1
        _check_assignment("clusters", clusters, source.num_nodes, num_clusters)
    offsets = source.node_offsets()
    none = np.empty(0, np.int32)
    numberings = []
    for t, table in enumerate(source.nodes):
        own = slice(offsets[t], offsets[t + 1])
        own_clusters = none if clusters is None else clusters[own]
        counts = np.zeros((num_parts, num_clusters), np.int64)
        count_groups(parts[own], own_clusters, counts)
        ends = np.cumsum(counts.reshape(-1)).reshape(counts.shape)
        starts = ends - counts
        new_ids = np.empty(table.num_nodes, id_dtype(table.num_nodes))
        number_nodes(parts[own], own_clusters, starts.copy(), new_ids)
        numberings.append(NodeIds(new_ids, np.column_stack([starts, ends[:, -1]])))
    return tuple(numberings)


def _check_assignment(what: str, values: np.ndarray, num_nodes: int, num_groups: int) -> None:
    if values.shape != (num_nodes,) or values.dtype.kind not in "iu":
        raise SpecError(
            f"{what} are {values.dtype} {values.shape}, but the graph has {num_nodes} nodes",
            "give one integer per node, all types concatenated",
        )
    if values.min(initial=0) < 0 or values.max(initial=0) >= num_groups:
        raise SpecError(
            f"{what} range from {values.min()} to {values.max()}, but there are {num_groups}",
            f"use 0 to {num_groups - 1}",
        )
