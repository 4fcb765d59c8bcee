"""Graph sources from numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.schema import SPLITS, Column, EdgeTable, EdgeType, GraphSource, NodeTable
from headrace.graph.sources.validate import check, written

NODE = "node"
EDGE = (NODE, "to", NODE)
CHUNK_EDGES = 1 << 20


def from_arrays(
    edge_index: np.ndarray,
    *,
    x: np.ndarray | None = None,
    y: np.ndarray | None = None,
    masks: Mapping[str, np.ndarray] | None = None,
    node_columns: Mapping[str, np.ndarray] | None = None,
    edge_columns: Mapping[str, np.ndarray] | None = None,
    num_nodes: int | None = None,
    name: str = "graph",
) -> GraphSource:
    """Create a homogeneous graph.

    Args:
        edge_index: Sources and destinations, shape `(2, edges)`.
        x: Features, one row per node.
        y: Labels, one per node.
        masks: Boolean masks of `train`, `val` and `test`.
        node_columns: Further values per node.
        edge_columns: Values per edge.
        num_nodes: Optional if there is a value per node.
        name: Name of the graph.
    """
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise SpecError(f"edge_index has shape {edge_index.shape}", "give shape (2, edges)")
    given = {"x": x, "y": y} | dict(node_columns or {})
    columns = {key: value for key, value in given.items() if value is not None}
    if num_nodes is None:
        if not columns:
            raise SpecError(f"{name} does not define its number of nodes", "give num_nodes")
        num_nodes = len(next(iter(columns.values())))
    nodes = node_table(NODE, num_nodes, columns, masks)
    edges = edge_table(EDGE, edge_index[0], edge_index[1], edge_columns)
    source = GraphSource(name, (nodes,), (edges,))
    check(source)
    return source


def node_table(
    name: str,
    num_nodes: int,
    columns: Mapping[str, np.ndarray] | None = None,
    masks: Mapping[str, np.ndarray] | None = None,
) -> NodeTable:
    """Nodes of one type from arrays."""
    for key, values in (columns or {}).items():
        _check_length(f"{key} of {name} nodes", values, num_nodes)
    splits = {
        split: split_of_mask(f"{split} mask of {name} nodes", mask, num_nodes)
        for split, mask in (masks or {}).items()
    }
    return NodeTable(name, num_nodes, columns_of(columns), splits)


def edge_table(
    edge_type: EdgeType,
    src: np.ndarray,
    dst: np.ndarray,
    columns: Mapping[str, np.ndarray] | None = None,
    keep_ids: bool = True,
) -> EdgeTable:
    """Edges of one type from arrays."""
    what = f"{written(edge_type)} edges"
    _check_length(f"destination of {what}", dst, len(src))
    for key, values in (columns or {}).items():
        _check_length(f"{key} of {what}", values, len(src))
    return EdgeTable(edge_type, len(src), chunks_of(src, dst), columns_of(columns), keep_ids)


def columns_of(arrays: Mapping[str, np.ndarray] | None) -> tuple[Column, ...]:
    """One column per array."""
    return tuple(Column.of(key, values) for key, values in (arrays or {}).items())


def chunks_of(
    src: np.ndarray, dst: np.ndarray
) -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Both arrays in chunks, as views."""

    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(src), CHUNK_EDGES):
            yield src[start : start + CHUNK_EDGES], dst[start : start + CHUNK_EDGES]

    return chunks


def split_of_mask(what: str, mask: np.ndarray, num_nodes: int) -> np.ndarray:
    """Ascending ids of the nodes selected by a mask."""
    if mask.dtype != np.bool_ or mask.ndim != 1:
        raise SpecError(
            f"{what} is {mask.dtype} of shape {mask.shape}",
            "give one bool per node; if there are several splits, choose one column",
        )
    _check_length(what, mask, num_nodes)
    return np.flatnonzero(mask)


def random_splits(
    ids: np.ndarray, shares: tuple[float, float, float], seed: int
) -> dict[str, np.ndarray]:
    """Assign ids randomly to `train`, `val` and `test`; `shares` sum to one."""
    assignment = np.random.default_rng(seed).permutation(ids)
    ends = np.round(np.cumsum(shares) * len(ids)).astype(np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    return {
        split: np.sort(assignment[start:end]).astype(np.int64)
        for split, start, end in zip(SPLITS, starts, ends, strict=True)
    }


def split_note(shares: tuple[float, float, float], seed: int) -> str:
    """Manifest note about randomly drawn splits."""
    parts = ", ".join(f"{share:.0%} {split}" for split, share in zip(SPLITS, shares, strict=True))
    return f"the source has no masks, so {parts} were drawn at random (seed {seed})"


def reversed_table(table: EdgeTable) -> EdgeTable:
    """The reversed edges as relation `rev_...`, with the same columns."""
    src_type, relation, dst_type = table.edge_type

    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for src, dst in table.chunks():
            yield dst, src

    return replace(table, edge_type=(dst_type, f"rev_{relation}", src_type), chunks=chunks)


def both_ways(tables: tuple[EdgeTable, ...]) -> tuple[EdgeTable, ...]:
    """Every table followed by its reverse, so that messages pass in both directions."""
    return tuple(each for table in tables for each in (table, reversed_table(table)))


def _check_length(what: str, values: np.ndarray, length: int) -> None:
    if values.ndim == 0 or len(values) != length:
        found = "is a scalar" if values.ndim == 0 else f"has {len(values):,} rows"
        raise SpecError(f"{what} {found}, not {length:,}", "give one row per node or edge")
