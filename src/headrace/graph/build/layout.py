"""On-disk layout of a source, determined and checked before writing."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.graph.build.csc import id_dtype
from headrace.graph.build.encoding_choice import choose_form
from headrace.graph.format.dtypes import stored_as
from headrace.graph.format.manifest import ColumnInfo, check_column_names
from headrace.graph.schema import GraphSource, Watcher
from headrace.graph.sources.validate import check_links, check_splits, written


@dataclass(frozen=True)
class DiskLayout:
    """A source and the stored form of the columns of every node type and edge type."""

    source: GraphSource
    node_columns: tuple[tuple[ColumnInfo, ...], ...]
    edge_columns: tuple[tuple[ColumnInfo, ...], ...]

    @classmethod
    def of(
        cls, source: GraphSource, features: str | None, watcher: Watcher | None = None
    ) -> DiskLayout:
        """Determine the layout of a source; raises SpecError if it cannot be stored."""
        for nodes in source.nodes:
            check_column_names([column.name for column in nodes.columns])
            check_splits(nodes)
        for edges in source.edges:
            check_column_names([column.name for column in edges.columns])
        _check_link_types(source)
        for links in source.links:
            check_links(links, {table.name: table.num_nodes for table in source.nodes})
        return cls(
            source,
            tuple(
                tuple(choose_form(c, features, n.num_nodes, watcher) for c in n.columns)
                for n in source.nodes
            ),
            tuple(tuple(stored_as(c, None) for c in e.columns) for e in source.edges),
        )

    def describe(self) -> object:
        """Fingerprint of the layout: equal for runs that write the same files."""
        nodes = [(t.name, t.num_nodes, _crcs(t.splits)) for t in self.source.nodes]
        edges = [(t.edge_type, t.num_edges, t.keep_ids) for t in self.source.edges]
        return self.source.name, nodes, edges, self.node_columns, self.edge_columns

    @property
    def is_encoded(self) -> bool:
        """Whether a column is encoded, which older versions cannot read."""
        return any(info.encoding is not None for infos in self.node_columns for info in infos)

    def num_bytes(self) -> int:
        """Size of all files except halos, plus the temporary files of edge columns."""
        num = 0
        for nodes, columns in zip(self.source.nodes, self.node_columns, strict=True):
            per_node = _row_bytes(columns) + 2 * id_dtype(nodes.num_nodes).itemsize
            num += math.ceil(nodes.num_nodes * per_node)
            num += sum(8 * len(ids) for ids in nodes.splits.values())
        spool = 0
        for edges, columns in zip(self.source.edges, self.edge_columns, strict=True):
            src, dst = (self.source.type_index(edges.edge_type[i]) for i in (0, 2))
            index_bytes = id_dtype(self.source.nodes[src].num_nodes).itemsize
            id_bytes = id_dtype(edges.num_edges).itemsize if edges.keep_ids else 0
            num += edges.num_edges * (index_bytes + id_bytes + int(_row_bytes(columns)))
            num += 8 * self.source.nodes[dst].num_nodes
            spool = max(spool, edges.num_edges * int(_row_bytes(columns)))
        return num + spool + sum(16 * len(links.src) for links in self.source.links)


def _check_link_types(source: GraphSource) -> None:
    types = [table.edge_type for table in source.edges]
    seen = set()
    for links in source.links:
        if links.edge_type not in types:
            raise SpecError(
                f"{links.split} links have the unknown edge type {written(links.edge_type)}",
                f"use one of {', '.join(written(each) for each in types[:8])}",
            )
        if (links.split, links.edge_type) in seen:
            raise SpecError(
                f"{links.split} links of {written(links.edge_type)} are given twice",
                "merge both tables",
            )
        seen.add((links.split, links.edge_type))


def _row_bytes(columns: Sequence[ColumnInfo]) -> float:
    # Sparse rows have an offset each.
    offsets = sum(8 for info in columns if info.codec is not None and info.codec.is_sparse)
    return offsets + sum(info.row_bytes for info in columns)


def _crcs(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {name: zlib.crc32(np.ascontiguousarray(array).data) for name, array in arrays.items()}


def shares_of(cluster: Cluster) -> np.ndarray:
    """Fraction of the graph for every machine, limited by its scarcer resource.

    A partition occupies memory and is read through the NIC, so the share of a machine is the
    smaller of its fractions of total memory and total outgoing bandwidth, normalised. If a machine
    declares no memory, only bandwidth is used.
    """
    memory = cluster.capacities(("memory",))[:, 0]
    nic = cluster.nic_out_bytes_per_s()
    shares = nic / nic.sum()
    if np.all(memory > 0):
        shares = np.minimum(shares, memory / memory.sum())
    return np.asarray(shares / shares.sum())
