"""What a graph is before it is partitioned: tables of nodes and edges, read in chunks.

A source holds no data. Whatever is large is read when it is needed, in order, as often as needed,
so that a graph may be larger than memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

EdgeType = tuple[str, str, str]
"""Source node type, relation, destination node type; as in PyG."""

SPLITS = ("train", "val", "test")


@dataclass(frozen=True)
class Column:
    """A value per node or per edge.

    Attributes:
        name: As in PyG: `x`, `y`, `edge_weight`, `time`.
        dtype: What `read` returns.
        shape: Of one row; `()` for a number per row.
        read: Rows `start` to `stop`, as an array that the caller does not change.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]

    @classmethod
    def of(cls, name: str, values: np.ndarray) -> Column:
        """A column that is an array already."""
        return cls(name, values.dtype, values.shape[1:], lambda start, stop: values[start:stop])


@dataclass(frozen=True)
class NodeTable:
    """All nodes of one type; original ids are row numbers.

    Attributes:
        name: The node type.
        num_nodes: How many rows.
        columns: Features, labels and what else there is per node.
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
        edge_type: The node types at both ends and the relation.
        num_edges: How many rows.
        chunks: Starts over and gives all rows as pairs of arrays: original ids of the sources and
            of the destinations, in the order of rows.
        columns: Weights, times and features per edge.
        keep_ids: Whether edges have an identity worth keeping. Generated ones have none, which
            saves as much disk as their topology takes.
    """

    edge_type: EdgeType
    num_edges: int
    chunks: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]
    columns: tuple[Column, ...] = ()
    keep_ids: bool = True


@dataclass(frozen=True)
class LinkTable:
    """Edges that are not part of the graph, but asked for: the test set of a link prediction.

    Attributes:
        split: `train`, `val` or `test`.
        edge_type: Of all links of this table.
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
        name: What to call it; ends up in the manifest.
        nodes: One table per node type. A homogeneous graph has one, called `node`.
        edges: One table per edge type. A homogeneous graph has one: `("node", "to", "node")`.
        links: Held-out links, if any.
        note: What was made up, such as splits where the source has none.
    """

    name: str
    nodes: tuple[NodeTable, ...]
    edges: tuple[EdgeTable, ...]
    links: tuple[LinkTable, ...] = ()
    note: str = ""

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(table.num_nodes for table in self.nodes)

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(table.num_edges for table in self.edges)

    def node_offsets(self) -> np.ndarray:
        """Where the nodes of each type begin when all types are counted in one row; one more."""
        return np.cumsum([0, *(table.num_nodes for table in self.nodes)]).astype(np.int64)

    def type_index(self, name: str) -> int:
        """Position of a node type."""
        return [table.name for table in self.nodes].index(name)


class Watcher(Protocol):
    """Is told when a stage begins and how much of it is done."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """A stage begins; `total` is what `advance` will add up to, if that is known."""
        ...

    def advance(self, amount: int) -> None:
        """Some more of the stage is done."""
        ...


class Nobody:
    """Does not want to know."""

    def begin(self, stage: str, total: int | None = None) -> None:
        """Ignore it."""

    def advance(self, amount: int) -> None:
        """Ignore it."""


def watched(source: GraphSource, watcher: Watcher) -> GraphSource:
    """The same source, telling the watcher of every row of edges and nodes that is read."""
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
