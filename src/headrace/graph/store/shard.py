"""Data of one store: in-edges of its graph partition, and columns of nodes and edges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.format.manifest import ColumnInfo, edge_path, node_path, starts_path
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.format.row_codec import StoredRows
from headrace.graph.sampling.hop import EdgePart
from headrace.graph.schema import EdgeType, TypeName


@dataclass(frozen=True)
class ShardRows:
    """A column of the graph partition.

    Attributes:
        first: Id of the first row: a new node id, or an edge id as hops return it.
        values: The rows as they are stored; may be memory-mapped.
        dtype: Dtype of the values; `bfloat16` if they are its bits.
        files: Files of the rows; empty if they are in memory only.
        is_encoded: Whether rows must be decoded.
    """

    first: int
    values: StoredRows
    dtype: str
    files: tuple[Path, ...] = ()
    is_encoded: bool = False

    @property
    def array(self) -> np.ndarray:
        """Rows of a column that is not encoded."""
        assert isinstance(self.values, np.ndarray)
        return self.values


@dataclass(frozen=True)
class Shard:
    """One graph partition as a store serves it; rows are by node or edge type and column."""

    part: int
    edges: Mapping[EdgeType, EdgePart] = field(default_factory=dict)
    rows: Mapping[tuple[TypeName, str], ShardRows] = field(default_factory=dict)

    def edges_by(
        self, edge_type: EdgeType, weight: str | None = None, time: str | None = None
    ) -> EdgePart:
        """Edges of a type with their weights and times; columns they do not have are ignored.

        Raises:
            SpecError: The edge type does not exist, or a column is not one number per edge.
        """
        part = self.edges.get(edge_type)
        if part is None:
            known = ", ".join(map(str, self.edges))
            raise SpecError(f"there are no edges of type {edge_type}", f"use one of {known}")
        weights, times = (self._numbers(edge_type, name) for name in (weight, time))
        if weights is None and times is None:
            return part
        return replace(part, weights=weights, times=times)

    def likely_columns(self, edge_type: EdgeType) -> list[tuple[str | None, str | None]]:
        """Candidate (weight, time) columns: floats are weights, integers are times."""
        weights: list[str | None] = [None]
        times: list[str | None] = [None]
        for (of, name), rows in self.rows.items():
            if of == edge_type and name != "ids" and rows.array.ndim == 1:
                if rows.dtype in ("float16", "float32", "float64"):
                    weights.append(name)
                elif rows.array.dtype.kind in "iu" and rows.dtype != "bfloat16":
                    times.append(name)
        return [(weight, time) for weight in weights for time in times]

    def check_edge_column(self, name: str | None) -> None:
        """Raise `SpecError` if no edge type has the column."""
        if name is not None and not any((edge_type, name) in self.rows for edge_type in self.edges):
            raise SpecError(f"no edges have a column {name[:40]!r}", "name a column of the edges")

    def _numbers(self, edge_type: EdgeType, name: str | None) -> np.ndarray | None:
        rows = None if name is None else self.rows.get((edge_type, name))
        if rows is None:
            return None
        if rows.dtype == "bfloat16":
            raise SpecError(f"{name!r} is bfloat16", "store weights and times as plain numbers")
        return rows.array


def open_shard(graph: PartitionedGraph, part: int) -> Shard:
    """Memory-map one graph partition; raise `SpecError` if it is missing or damaged."""
    own = graph.part(part)
    manifest = graph.manifest
    edges: dict[EdgeType, EdgePart] = {}
    rows: dict[tuple[TypeName, str], ShardRows] = {}
    for t, node in enumerate(manifest.nodes):
        originals, path = own.original_ids(node.name), node_path(part, t, "ids")
        rows[node.name, "ids"] = ShardRows(
            own.start(node.name), originals, manifest.files[path].dtype, (graph.folder / path,)
        )
        for column in node.columns:
            rows[node.name, column.name] = ShardRows(
                own.start(node.name),
                own.stored_rows(node.name, column.name),
                column.dtype,
                tuple(graph.folder / path for path in _paths(part, t, column)),
                is_encoded=column.encoding is not None,
            )
    for e, edge in enumerate(manifest.edges):
        edges[edge.edge_type] = EdgePart(
            own.start(edge.dst),
            edge.offsets[part],
            own.indptr(edge.edge_type),
            own.indices(edge.edge_type),
            own.original_ids(edge.dst),
            num_sources=graph.num_nodes_of(edge.src),
            source_ids=partial(graph.original_ids, edge.src),
        )
        edge_ids, path = own.edge_ids(edge.edge_type), edge_path(part, e, "ids")
        if edge_ids is not None:
            rows[edge.edge_type, "ids"] = ShardRows(
                edge.offsets[part], edge_ids, manifest.files[path].dtype, (graph.folder / path,)
            )
        for column in edge.columns:
            rows[edge.edge_type, column.name] = ShardRows(
                edge.offsets[part],
                own.edge_column(edge.edge_type, column.name),
                column.dtype,
                (graph.folder / edge_path(part, e, column.name),),
            )
    return Shard(part, edges, rows)


def _paths(part: int, t: int, column: ColumnInfo) -> Iterator[str]:
    yield node_path(part, t, column.name)
    if column.codec is not None and column.codec.is_sparse:
        yield starts_path(part, t, column.name)
