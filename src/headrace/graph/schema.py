"""Input graphs: node and edge tables that are read in chunks.

A source holds no data. Large columns are read on demand, in order and repeatedly, so a graph may
be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

EdgeType = tuple[str, str, str]
"""Source node type, relation, destination node type; as in PyG."""

TypeName = str | EdgeType
"""A node type or an edge type."""

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Column:
    """One value per node or per edge.

    Attributes:
        name: PyG's name: `x`, `y`, `edge_weight`, `time`.
        dtype: Dtype of the array that `read` returns.
        shape: Shape of one row; `()` for a scalar.
        read: Returns rows `start` to `stop` as an array that the caller must not modify.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]

    @classmethod
    def of(cls, name: str, values: np.ndarray) -> Column:
        """Create a column from an array."""
        return cls(name, values.dtype, values.shape[1:], lambda start, stop: values[start:stop])


@dataclass(frozen=True)
class NodeTable:
    """All nodes of one type; original ids are row numbers.

    Attributes:
        name: Node type.
        num_nodes: Number of rows.
        columns: Features, labels and other values per node.
        splits: Sorted original ids of the `train`, `val` and `test` nodes; any may be missing.
    """

    name: str
    num_nodes: int
    columns: tuple[Column, ...] = ()
    splits: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeTable:
    """All edges of one type; original ids are row numbers.

    Attributes:
        edge_type: Source node type, relation, destination node type.
        num_edges: Number of rows.
        chunks: Iterates over all rows from the start, in order, as pairs of arrays: original ids of
            sources and destinations.
        columns: Weights, times and features per edge.
        keep_ids: Whether to store edge ids. Generated graphs do not, which halves the disk space of
            their topology.
    """

    edge_type: EdgeType
    num_edges: int
    chunks: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
    columns: tuple[Column, ...] = ()
    keep_ids: bool = True


@dataclass(frozen=True)
class LinkTable:
    """Held-out edges for link prediction; they are not part of the graph's topology.

    Attributes:
        split: `train`, `val` or `test`.
        edge_type: Edge type of all links of this table.
        src: Original ids.
        dst: Original ids.
    """

    split: str
    edge_type: EdgeType
    src: np.ndarray
    dst: np.ndarray


@dataclass(frozen=True)
class GraphSource:
    """A graph with all its tables.

    Attributes:
        name: Name of the graph, stored in the manifest.
        nodes: One table per node type. A homogeneous graph has one, named `node`.
        edges: One table per edge type. A homogeneous graph has one: `("node", "to", "node")`.
        links: Held-out links, if any.
        note: Describes generated data, such as splits that the source does not define.
    """

    name: str
    nodes: tuple[NodeTable, ...]
    edges: tuple[EdgeTable, ...]
    links: tuple[LinkTable, ...] = ()
    note: str = ""

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return sum(table.num_nodes for table in self.nodes)

    @property
    def num_edges(self) -> int:
        """Number of edges of all types."""
        return sum(table.num_edges for table in self.edges)

    def node_offsets(self) -> np.ndarray:
        """First global id of each node type, followed by the total number of nodes."""
        return np.cumsum([0, *(table.num_nodes for table in self.nodes)]).astype(np.int64)

    def type_index(self, name: str) -> int:
        """Position of a node type."""
        return [table.name for table in self.nodes].index(name)


class Watcher(Protocol):
    """Receives progress updates."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """Start a stage; `total` is the sum of the following `advance` calls, if known."""
        ...

    def advance(self, amount: int) -> None:
        """Report progress within the current stage."""
        ...


class Nobody:
    """Discards progress updates."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """Do nothing."""

    def advance(self, amount: int) -> None:
        """Do nothing."""


def watched(source: GraphSource, watcher: Watcher) -> GraphSource:
    """Return the same source, which reports every row it reads to the watcher."""
    return replace(
        source,
        nodes=tuple(
            replace(table, columns=tuple(_column(column, watcher) for column in table.columns))
            for table in source.nodes
        ),
        edges=tuple(_edges(table, watcher) for table in source.edges),
    )


def _edges(table: EdgeTable, watcher: Watcher) -> EdgeTable:
    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for src, dst in table.chunks():
            yield src, dst
            watcher.advance(len(src))

    return replace(table, chunks=chunks)


def _column(column: Column, watcher: Watcher) -> Column:
    def read(start: int, stop: int) -> np.ndarray:
        rows = column.read(start, stop)
        watcher.advance(len(rows))
        return rows

    return replace(column, read=read)
