"""Edges of all graph partitions, memory-mapped by one process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from headrace.graph.format.manifest import edge_path, edges_have
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampling.hop import EdgePart
from headrace.graph.schema import EdgeType


def open_edge_parts(
    graph: PartitionedGraph, *, weight: str | None = None, time: str | None = None
) -> dict[EdgeType, list[EdgePart]]:
    """Memory-map the edges of all graph partitions.

    Args:
        graph: The partitioned graph.
        weight: Weight column of edges; edge types without it are sampled uniformly.
        time: Time column of edges or nodes. Times of nodes are copied to their out-edges: 8 bytes
            per edge.

    Raises:
        SpecError: A column does not exist, or is not one number per row.
    """
    node_times: Mapping[str, np.ndarray] = {}
    if not edges_have(graph.manifest, weight, time) and time is not None:
        node_times = node_column(graph, time)
    parts: dict[EdgeType, list[EdgePart]] = {}
    for e, edge in enumerate(graph.manifest.edges):
        edge_type, names = edge.edge_type, {column.name for column in edge.columns}
        parts[edge_type] = []
        for number in range(graph.num_parts):
            part = graph.part(number)
            weights, times = (
                None if name is None or name not in names else part.edge_column(edge_type, name)
                for name in (weight, time)
            )
            if edge.src in node_times:
                sources, path = part.indices(edge_type), edge_path(number, e, "indices")
                graph.check_values(path, sources, graph.num_nodes_of(edge.src))
                times = node_times[edge.src][sources]
            parts[edge_type].append(
                EdgePart(
                    part.start(edge.dst),
                    edge.offsets[number],
                    part.indptr(edge_type),
                    part.indices(edge_type),
                    part.original_ids(edge.dst),
                    weights,
                    times,
                    graph.num_nodes_of(edge.src),
                    partial(graph.original_ids, edge.src),
                )
            )
    return parts


def node_column(graph: PartitionedGraph, name: str) -> Mapping[str, np.ndarray]:
    """Copy of a column of all nodes by new id, for every node type that has it."""
    return {
        node.name: np.concatenate(
            [graph.part(number).column(node.name, name) for number in range(graph.num_parts)]
        )
        for node in graph.manifest.nodes
        if any(column.name == name for column in node.columns)
    }
