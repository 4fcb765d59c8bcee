"""Put a graph in parts together again, by original ids: to check it, or to export it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from headrace.graph.format.manifest import ColumnInfo, EdgeInfo, NodeInfo, numpy_dtype
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.schema import Column, EdgeTable, GraphSource, LinkTable, NodeTable


def reassemble(graph: PartitionedGraph) -> GraphSource:
    """The source that a graph was made of.

    Nodes, splits and columns are read when asked for; edges of a type are put together in memory
    each time they are. Edges come in their original order if their ids were kept, else by part.
    Columns stored as `bfloat16` give its bits.
    """
    return GraphSource(
        name=graph.manifest.name,
        nodes=tuple(_nodes(graph, node) for node in graph.manifest.nodes),
        edges=tuple(_edges(graph, edge) for edge in graph.manifest.edges),
        links=tuple(_links(graph)),
    )


def _nodes(graph: PartitionedGraph, node: NodeInfo) -> NodeTable:
    def original(split: str) -> np.ndarray:
        parts = [graph.part(number) for number in range(graph.num_parts)]
        ids = [part.split(node.name, split) + part.start(node.name) for part in parts]
        return np.sort(graph.to_original(node.name, np.concatenate(ids)))

    return NodeTable(
        node.name,
        node.num_nodes,
        tuple(_column(info, partial(_read_nodes, graph, node, info)) for info in node.columns),
        {split: original(split) for split in node.splits},
    )


def _read_nodes(
    graph: PartitionedGraph, node: NodeInfo, info: ColumnInfo, start: int, stop: int
) -> np.ndarray:
    new_ids = graph.to_new(node.name, np.arange(start, stop))
    owners = graph.owner(node.name, new_ids)
    rows = np.empty((stop - start, *info.shape), numpy_dtype(info.dtype))
    for number in np.unique(owners):
        part, own = graph.part(number), owners == number
        rows[own] = part.column(node.name, info.name)[new_ids[own] - part.start(node.name)]
    return rows


def _edges(graph: PartitionedGraph, edge: EdgeInfo) -> EdgeTable:
    parts = [graph.part(number) for number in range(graph.num_parts)]

    def ordered(values: np.ndarray) -> np.ndarray:
        """Take edges from the order of parts to that of the source."""
        ids = [part.edge_ids(edge.edge_type) for part in parts]
        kept = [own for own in ids if own is not None]
        return values[np.argsort(np.concatenate(kept))] if kept else values

    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        indices = np.concatenate([part.indices(edge.edge_type) for part in parts])
        src = graph.to_original(edge.src, indices)
        degrees = [np.diff(part.indptr(edge.edge_type)) for part in parts]
        ids = [part.original_ids(edge.dst).astype(np.int64) for part in parts]
        dst = np.repeat(np.concatenate(ids), np.concatenate(degrees))
        yield ordered(src), ordered(dst)

    def read(info: ColumnInfo, start: int, stop: int) -> np.ndarray:
        values = np.concatenate([part.edge_column(edge.edge_type, info.name) for part in parts])
        return ordered(values)[start:stop]

    return EdgeTable(
        edge.edge_type,
        edge.num_edges,
        chunks,
        tuple(_column(info, partial(read, info)) for info in edge.columns),
        edge.has_ids,
    )


def _links(graph: PartitionedGraph) -> Iterator[LinkTable]:
    for link in graph.manifest.links:
        edge = graph.manifest.edges[link.edge]
        src, dst = graph.links(link.split, edge.edge_type)
        yield LinkTable(
            link.split,
            edge.edge_type,
            graph.to_original(edge.src, src),
            graph.to_original(edge.dst, dst),
        )


def _column(info: ColumnInfo, read: partial[np.ndarray]) -> Column:
    return Column(info.name, numpy_dtype(info.dtype), info.shape, read)
