"""Chunks of nodes with all their in-edges, small enough for memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headrace.graph.format.partitioned_graph import Partition, PartitionedGraph, as_tensor
from headrace.graph.sampling.id_table import table_for
from headrace.graph.schema import EdgeType


@dataclass(frozen=True)
class Chunk:
    """Nodes of a partition that are computed at once: the targets.

    Attributes:
        part: Their partition.
        node_type: Type of the targets.
        begin: Local id of the first one.
        end: Local id after the last one.
    """

    part: Partition
    node_type: str
    begin: int
    end: int

    @property
    def num_targets(self) -> int:
        """Number of targets."""
        return self.end - self.begin

    @property
    def first(self) -> int:
        """New id of the first target."""
        return self.part.start(self.node_type) + self.begin

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """Edge types that end at this node type."""
        return _ending_at(self.part.graph, self.node_type)

    def lists(self, edge_type: EdgeType) -> tuple[np.ndarray, np.ndarray]:
        """CSR of the in-edges: row pointers and new ids of the sources."""
        indptr = self.part.indptr(edge_type)[self.begin : self.end + 1]
        return indptr - indptr[0], self.part.indices(edge_type)[indptr[0] : indptr[-1]]

    def edge_values(self, edge_type: EdgeType, name: str) -> Tensor:
        """A column of the in-edges, as `float32`."""
        values = self.part.edge_column(edge_type, name)
        indptr = self.part.indptr(edge_type)
        own = values[indptr[self.begin] : indptr[self.end]]
        return as_tensor(own, self.part.edge_column_info(edge_type, name).dtype).float()


def cut(
    graph: PartitionedGraph, node_type: str, edge_bytes: int, node_bytes: int, memory_bytes: int
) -> Iterator[Chunk]:
    """Split all nodes of a type into chunks, in the order of new ids; a chunk is in one partition.

    `edge_bytes` and `node_bytes` are the memory per edge and target. A chunk of a single node may
    exceed `memory_bytes`.
    """
    for number in range(graph.num_parts):
        part = graph.part(number)
        num_nodes = part.num_nodes(node_type)
        indptr = _all_ends(part, node_type)
        begin = 0
        while begin < num_nodes:
            end = _furthest(indptr, begin, edge_bytes, node_bytes, memory_bytes)
            yield Chunk(part, node_type, begin, end)
            begin = end


@dataclass(frozen=True)
class Subgraph:
    """The subgraph of a chunk and the sources of its edges.

    Attributes:
        nodes: New ids by node type; the targets come first.
        edges: Sources and targets, `(2, num_edges)`, by edge type.
    """

    nodes: dict[str, np.ndarray]
    edges: dict[EdgeType, Tensor]


class SubgraphBuilder:
    """Builds the subgraphs of chunks."""

    def __init__(self, graph: PartitionedGraph) -> None:
        self._tables = {name: table_for(graph.num_nodes_of(name)) for name in graph.node_types}

    def around(self, chunk: Chunk) -> Subgraph:
        """The subgraph that a layer needs for a chunk."""
        lists = {edge_type: chunk.lists(edge_type) for edge_type in chunk.edge_types}
        own, num_targets = chunk.node_type, chunk.num_targets
        targets = np.arange(chunk.first, chunk.first + num_targets)
        counts = {own: num_targets} | {src: 0 for src, _, _ in lists if src != own}
        room = dict(counts)
        for (src, _, _), (_, indices) in lists.items():
            room[src] += len(indices)
        nodes = {name: np.empty(num + 1, np.int64) for name, num in room.items()}
        nodes[own][:num_targets] = targets
        for name in nodes:
            self._tables[name].begin(targets if name == own else targets[:0])
        edges = {}
        for edge_type, (indptr, indices) in lists.items():
            src, rows = edge_type[0], np.empty(len(indices), np.int64)
            counts[src] = self._tables[src].rows(indices, nodes[src], counts[src], rows)
            ends = np.repeat(np.arange(num_targets), np.diff(indptr))
            edges[edge_type] = torch.from_numpy(np.stack([rows, ends]))
        return Subgraph({name: ids[: counts[name]] for name, ids in nodes.items()}, edges)


def _furthest(
    indptr: np.ndarray, begin: int, edge_bytes: int, node_bytes: int, memory_bytes: int
) -> int:
    """The largest end of a chunk that fits the memory."""

    def needed(end: int) -> int:
        return edge_bytes * int(indptr[end] - indptr[begin]) + node_bytes * (end - begin)

    num_fitting = bisect_right(range(begin + 1, len(indptr)), memory_bytes, key=needed)
    return begin + max(num_fitting, 1)


def _ending_at(graph: PartitionedGraph, node_type: str) -> tuple[EdgeType, ...]:
    return tuple(edge_type for edge_type in graph.edge_types if edge_type[2] == node_type)


def _all_ends(part: Partition, node_type: str) -> np.ndarray:
    """Row pointers of the in-edges of all types together."""
    lists = [part.indptr(edge_type) for edge_type in _ending_at(part.graph, node_type)]
    if len(lists) == 1:
        return lists[0]
    none = np.zeros(part.num_nodes(node_type) + 1, np.int64)
    return np.sum(lists, axis=0) if lists else none
