"""New ids: contiguous for every part, and inside a part for every second-level cluster."""

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
        bounds: Where each cluster of each part begins, and the end of the last one of the part:
            `(parts, clusters + 1)`.
    """

    new_ids: np.ndarray
    bounds: np.ndarray

    @property
    def offsets(self) -> np.ndarray:
        """Where each part begins; one more."""
        return np.append(self.bounds[:, 0], self.bounds[-1, -1])


def number(
    source: GraphSource, parts: np.ndarray, clusters: np.ndarray | None, num_parts: int
) -> tuple[NodeIds, ...]:
    """Number the nodes of every type by part, then cluster, then original id.

    Args:
        source: Whose nodes.
        parts: Of every node, all types in one row.
        clusters: Of every node inside its part, counted from zero; none for one per part.
        num_parts: How many parts.

    Raises:
        SpecError: There are more parts than nodes, or parts or clusters are not those of the nodes.
    """
    if num_parts < 1:
        raise SpecError(f"{num_parts} parts were asked for", "ask for at least 1")
    if num_parts > source.num_nodes:
        raise SpecError(
            f"{num_parts} parts were asked for, the graph has {source.num_nodes} nodes",
            "ask for fewer parts",
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
            f"{what} are {values.dtype} {values.shape}, the graph has {num_nodes} nodes",
            "give one whole number per node, all types in one row",
        )
    if values.min(initial=0) < 0 or values.max(initial=0) >= num_groups:
        raise SpecError(
            f"{what} go from {values.min()} to {values.max()}, there are {num_groups}",
            f"use 0 to {num_groups - 1}",
        )
