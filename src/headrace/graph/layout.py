"""What a source becomes on disk, decided and checked before anything is written."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.building import id_dtype
from headrace.graph.converting import stored_as
from headrace.graph.manifest import ColumnInfo, check_column_names, numpy_dtype
from headrace.graph.source import SPLITS, GraphSource, LinkTable, NodeTable


@dataclass(frozen=True)
class Layout:
    """A source and how its columns are stored.

    Attributes:
        source: The graph.
        node_columns: Of every node type.
        edge_columns: Of every edge type.
    """

    source: GraphSource
    node_columns: tuple[tuple[ColumnInfo, ...], ...]
    edge_columns: tuple[tuple[ColumnInfo, ...], ...]

    @classmethod
    def of(cls, source: GraphSource, feature_dtype: str | None) -> Layout:
        """Decide how to store a source.

        Raises:
            SpecError: Something in it cannot be stored.
        """
        for nodes in source.nodes:
            check_column_names([column.name for column in nodes.columns])
            _check_splits(nodes)
        for edges in source.edges:
            check_column_names([column.name for column in edges.columns])
        for links in source.links:
            _check_links(links, source)
        return cls(
            source,
            tuple(tuple(stored_as(c, feature_dtype) for c in n.columns) for n in source.nodes),
            tuple(tuple(stored_as(c, None) for c in e.columns) for e in source.edges),
        )

    def describe(self) -> object:
        """What is the same in two runs that write the same."""
        nodes = [(t.name, t.num_nodes, _crcs(t.splits)) for t in self.source.nodes]
        edges = [(t.edge_type, t.num_edges, t.keep_ids) for t in self.source.edges]
        return self.source.name, nodes, edges, self.node_columns, self.edge_columns

    def num_bytes(self) -> int:
        """Of all files, but for halos; with the spools of edge columns while they are needed."""
        num = 0
        for nodes, columns in zip(self.source.nodes, self.node_columns, strict=True):
            num += nodes.num_nodes * (_row_bytes(columns) + 2 * id_dtype(nodes.num_nodes).itemsize)
            num += sum(8 * len(ids) for ids in nodes.splits.values())
        spool = 0
        for edges, columns in zip(self.source.edges, self.edge_columns, strict=True):
            src, dst = (self.source.type_index(edges.edge_type[i]) for i in (0, 2))
            index_bytes = id_dtype(self.source.nodes[src].num_nodes).itemsize
            id_bytes = id_dtype(edges.num_edges).itemsize if edges.keep_ids else 0
            num += edges.num_edges * (index_bytes + id_bytes + _row_bytes(columns))
            num += 8 * self.source.nodes[dst].num_nodes
            spool = max(spool, edges.num_edges * _row_bytes(columns))
        return num + spool + sum(16 * len(links.src) for links in self.source.links)


def _check_splits(table: NodeTable) -> None:
    for split, ids in table.splits.items():
        if split not in SPLITS:
            raise SpecError(
                f"nodes {table.name!r} have a split {split!r}", f"use {', '.join(SPLITS)}"
            )
        _check_ids(f"{split} nodes of {table.name!r}", ids, table.num_nodes)


def _check_links(links: LinkTable, source: GraphSource) -> None:
    types = [table.edge_type for table in source.edges]
    if links.edge_type not in types:
        raise SpecError(
            f"{links.split} links are of type {links.edge_type}, which no edges are",
            f"use one of {', '.join(' '.join(each) for each in types[:8])}",
        )
    if len(links.src) != len(links.dst):
        raise SpecError(
            f"{links.split} links have {len(links.src)} sources and {len(links.dst)} destinations",
            "give both ends of every link",
        )
    same = [each for each in source.links if each.edge_type == links.edge_type]
    if sum(each.split == links.split for each in same) > 1:
        raise SpecError(
            f"{links.split} links of {links.edge_type} are given twice", "join the tables"
        )
    for ids, name in ((links.src, links.edge_type[0]), (links.dst, links.edge_type[2])):
        num_nodes = source.nodes[source.type_index(name)].num_nodes
        _check_ids(f"{links.split} links of {links.edge_type}", ids, num_nodes)


def _check_ids(what: str, ids: np.ndarray, num_nodes: int) -> None:
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise SpecError(f"{what} are {ids.dtype} {ids.shape}", "give one row of whole numbers")
    if len(ids) > 0 and not 0 <= ids.min() <= ids.max() < num_nodes:
        raise SpecError(
            f"{what} go from {ids.min()} to {ids.max()}, there are {num_nodes} nodes",
            f"use 0 to {num_nodes - 1}",
        )


def _row_bytes(columns: Sequence[ColumnInfo]) -> int:
    return sum(numpy_dtype(info.dtype).itemsize * math.prod(info.shape) for info in columns)


def _crcs(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {name: zlib.crc32(np.ascontiguousarray(array).data) for name, array in arrays.items()}
