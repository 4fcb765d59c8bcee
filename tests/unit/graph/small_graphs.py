"""Small random graphs, their topology built the plain way, and what parts of them must contain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.graph.adjacency import Csc
from headrace.graph.build.node_writer import write_parts
from headrace.graph.format.manifest import Manifest
from headrace.graph.schema import Column, EdgeTable, EdgeType, GraphSource, LinkTable, NodeTable

NODE_TO_NODE = ("node", "to", "node")


def edge_table(
    edge_type: EdgeType,
    src: np.ndarray,
    dst: np.ndarray,
    columns: tuple[Column, ...] = (),
    keep_ids: bool = True,
) -> EdgeTable:
    half = len(src) // 2
    return EdgeTable(
        edge_type,
        len(src),
        lambda: iter([(src[:half], dst[:half]), (src[half:], dst[half:])]),
        columns,
        keep_ids,
    )


def homogeneous(
    num_nodes: int = 30, num_edges: int = 120, seed: int = 0, keep_ids: bool = True
) -> GraphSource:
    rng = np.random.default_rng(seed)
    splits = rng.integers(0, 4, num_nodes)
    nodes = NodeTable(
        "node",
        num_nodes,
        (
            Column.of("x", rng.standard_normal((num_nodes, 5)).astype(np.float32)),
            Column.of("y", rng.integers(0, 7, num_nodes)),
        ),
        {name: np.flatnonzero(splits == i) for i, name in enumerate(("train", "val", "test"))},
    )
    src, dst = rng.integers(0, num_nodes, (2, num_edges))
    weights = Column.of("edge_weight", rng.random(num_edges).astype(np.float32))
    columns = (weights,) if keep_ids else ()
    return GraphSource("small", (nodes,), (edge_table(NODE_TO_NODE, src, dst, columns, keep_ids),))


def with_features(source: GraphSource, values: np.ndarray) -> GraphSource:
    """The same graph with other features."""
    (table,) = source.nodes
    columns = tuple(column for column in table.columns if column.name != "x")
    nodes = replace(table, columns=(Column.of("x", values), *columns))
    return replace(source, nodes=(nodes,))


def heterogeneous(seed: int = 0, num_papers: int = 20) -> GraphSource:
    rng = np.random.default_rng(seed)
    papers = NodeTable(
        "paper",
        num_papers,
        (Column.of("x", rng.standard_normal((num_papers, 3))),),
        {"train": np.flatnonzero(rng.random(num_papers) < 0.5)},
    )
    authors = NodeTable("author", 9, (Column.of("is_dr", rng.random(9) < 0.5),))
    venues = NodeTable("venue", 2)
    sizes = {"paper": num_papers, "author": 9, "venue": 2}
    edges = []
    for edge_type, num in (
        (("author", "writes", "paper"), 40),
        (("paper", "cites", "paper"), 50),
        (("venue", "/has/no edges", "author"), 0),
        (("paper", "in", "venue"), 7),
    ):
        src = rng.integers(0, sizes[edge_type[0]], num)
        dst = rng.integers(0, sizes[edge_type[2]], num)
        times = Column.of("time", rng.integers(0, 100, (num, 2)))
        edges.append(edge_table(edge_type, src, dst, (times,)))
    links = LinkTable(
        "test",
        ("author", "writes", "paper"),
        rng.integers(0, 9, 6),
        rng.integers(0, num_papers, 6),
    )
    return GraphSource("library", (papers, authors, venues), tuple(edges), (links,))


def endpoints(table: EdgeTable) -> tuple[np.ndarray, np.ndarray]:
    pairs = list(table.chunks())
    return np.concatenate([s for s, _ in pairs]), np.concatenate([d for _, d in pairs])


def plain_csc(source: GraphSource, table: EdgeTable) -> Csc:
    src, dst = endpoints(table)
    order = np.lexsort((np.arange(len(src)), src, dst))
    num_dst = source.nodes[source.type_index(table.edge_type[2])].num_nodes
    indptr = np.zeros(num_dst + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=num_dst), out=indptr[1:])
    return Csc(indptr, src[order].astype(np.int32), order if table.keep_ids else None)


def write(
    source: GraphSource,
    folder: Path,
    num_parts: int = 3,
    num_clusters: int | None = 2,
    seed: int = 0,
    features: str | None = None,
) -> Manifest:
    """Write random parts of a source."""
    rng = np.random.default_rng(seed)
    parts = rng.integers(0, num_parts, source.num_nodes).astype(np.int32)
    clusters = None
    if num_clusters is not None:
        clusters = rng.integers(0, num_clusters, source.num_nodes).astype(np.int32)
    return write_parts(
        source,
        [plain_csc(source, table) for table in source.edges],
        parts,
        clusters,
        folder,
        num_parts=num_parts,
        features=features,
    )
