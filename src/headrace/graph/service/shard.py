"""What one store has: the edges that end in its part, and a row of values per node or edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.hops import EdgePart
from headrace.graph.manifest import edge_path, node_path
from headrace.graph.opening import PartitionedGraph
from headrace.graph.service.embeddings import Embedding
from headrace.graph.source import EdgeType

Owner = str | EdgeType
"""What has values: a node type or an edge type."""


@dataclass(frozen=True)
class Rows:
    """A value per node or edge of the part.

    Attributes:
        first: Id of the first row: a new id of a node, or the id of an edge as hops give it.
        values: The rows; may be a mapped file.
        dtype: As it is stored; `bfloat16` if `values` are its bits.
        file: Where they lie; none if in memory only.
        embedding: Set if the rows are learned.
    """

    first: int
    values: np.ndarray
    dtype: str
    file: Path | None = None
    embedding: Embedding | None = None


@dataclass(frozen=True)
class Shard:
    """One part of a graph, as a store serves it.

    Attributes:
        part: Its number.
        edges: Per edge type.
        rows: Per owner and column.
    """

    part: int
    edges: Mapping[EdgeType, EdgePart] = field(default_factory=dict)
    rows: Mapping[tuple[Owner, str], Rows] = field(default_factory=dict)


def open_shard(
    graph: PartitionedGraph, part: int, weights: str | None = None, times: str | None = None
) -> Shard:
    """Map one part.

    Args:
        graph: The whole graph.
        part: Which part.
        weights: Edge column by which neighbours are drawn, where edges have it.
        times: Edge column that says when an edge came to be, where edges have it.

    Raises:
        SpecError: There is no such part, or its files are not as they should be.
    """
    own = graph.part(part)
    manifest = graph.manifest
    edges: dict[EdgeType, EdgePart] = {}
    rows: dict[tuple[Owner, str], Rows] = {}
    for t, node in enumerate(manifest.nodes):
        originals, path = own.original_ids(node.name), node_path(part, t, "ids")
        rows[node.name, "ids"] = Rows(
            own.start(node.name), originals, manifest.files[path].dtype, graph.folder / path
        )
        for column in node.columns:
            rows[node.name, column.name] = Rows(
                own.start(node.name),
                own.column(node.name, column.name),
                column.dtype,
                graph.folder / node_path(part, t, column.name),
            )
    found = set()
    for e, edge in enumerate(manifest.edges):
        names = {column.name for column in edge.columns}
        found |= names & {weights, times}
        edges[edge.edge_type] = EdgePart(
            own.start(edge.dst),
            edge.offsets[part],
            own.indptr(edge.edge_type),
            own.indices(edge.edge_type),
            own.original_ids(edge.dst),
            own.edge_column(edge.edge_type, weights) if weights in names else None,
            own.edge_column(edge.edge_type, times) if times in names else None,
        )
        edge_ids, path = own.edge_ids(edge.edge_type), edge_path(part, e, "ids")
        if edge_ids is not None:
            rows[edge.edge_type, "ids"] = Rows(
                edge.offsets[part], edge_ids, manifest.files[path].dtype, graph.folder / path
            )
        for column in edge.columns:
            rows[edge.edge_type, column.name] = Rows(
                edge.offsets[part],
                own.edge_column(edge.edge_type, column.name),
                column.dtype,
                graph.folder / edge_path(part, e, column.name),
            )
    for name in (weights, times):
        if name is not None and name not in found:
            raise SpecError(f"no edges have a column {name!r}", "name a column of the edges")
    return Shard(part, edges, rows)
