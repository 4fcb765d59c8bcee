"""Validation of graph sources while they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.schema import (
    SPLITS,
    Column,
    EdgeTable,
    EdgeType,
    GraphSource,
    LinkTable,
    NodeTable,
)

CHUNK_BYTES = 64 << 20
"""Chunk size of `check`."""


def check(source: GraphSource) -> None:
    """Read a whole graph once and validate it.

    Raises:
        SpecError: There are no nodes, a name is duplicate, an edge, link or split refers to a node
            that does not exist, a number is not finite, or a table is shorter than declared.
    """
    good = checked(source)
    for nodes in good.nodes:
        for column in nodes.columns:
            _read_through(column, nodes.num_nodes)
    for edges in good.edges:
        for _ in edges.chunks():
            pass
        for column in edges.columns:
            _read_through(column, edges.num_edges)


def checked(source: GraphSource) -> GraphSource:
    """Validate small data now and large data on each read.

    Returns:
        The same graph, whose columns and edges raise `SpecError` on invalid data.

    Raises:
        SpecError: Names, splits or held-out links are invalid.
    """
    check_names(source)
    num_nodes = {table.name: table.num_nodes for table in source.nodes}
    for table in source.nodes:
        check_splits(table)
    for link in source.links:
        check_links(link, num_nodes)
    return replace(
        source,
        nodes=tuple(_checked_nodes(table) for table in source.nodes),
        edges=tuple(_checked_edges(table, num_nodes) for table in source.edges),
    )


def check_names(source: GraphSource) -> None:
    """Raise SpecError if there are no nodes, duplicate names, or edges with unknown node types."""
    if source.num_nodes == 0:
        raise SpecError(f"{source.name} has no nodes", "give at least one node")
    names = [table.name for table in source.nodes]
    _check_unique(names, "node type", source.name)
    _check_unique([written(table.edge_type) for table in source.edges], "edge type", source.name)
    edge_types = [table.edge_type for table in source.edges]
    for edge_type in edge_types + [link.edge_type for link in source.links]:
        for end in (edge_type[0], edge_type[2]):
            if end not in names:
                raise SpecError(
                    f"{written(edge_type)} refers to node type {end}, which {source.name} lacks",
                    f"add a table of {end} nodes, or use one of {', '.join(names)}",
                )
    for nodes in source.nodes:
        _check_unique([column.name for column in nodes.columns], "column", nodes.name)
    for edges in source.edges:
        names = [column.name for column in edges.columns]
        _check_unique(names, "column", written(edges.edge_type))


def check_splits(table: NodeTable) -> None:
    """Raise SpecError if a split is unknown, not ascending or refers to missing nodes."""
    for split, ids in table.splits.items():
        what = f"{split} split of {table.name}"
        if split not in SPLITS:
            raise SpecError(
                f"{table.name} has an unknown split {split}", f"use {', '.join(SPLITS)}"
            )
        check_integers(ids, f"the {what}")
        check_range(ids, table.num_nodes, what, table.name)
        if ids.size > 1 and bool((np.diff(ids) <= 0).any()):
            raise SpecError(f"the {what} is not ascending or has duplicates", "sort its unique ids")


def check_links(link: LinkTable, num_nodes: dict[str, int]) -> None:
    """Raise SpecError if an end of a held-out link does not exist."""
    if link.split not in SPLITS:
        raise SpecError(f"links have an unknown split {link.split}", f"use {', '.join(SPLITS)}")
    if link.src.shape != link.dst.shape:
        raise SpecError(
            f"{link.split} links of {written(link.edge_type)} have {link.src.size:,} sources and "
            f"{link.dst.size:,} destinations",
            "give one of each per link",
        )
    check_ends(link.edge_type, link.src, link.dst, num_nodes, 0)


def check_ends(
    edge_type: EdgeType, src: np.ndarray, dst: np.ndarray, num_nodes: dict[str, int], first_row: int
) -> None:
    """Raise SpecError if an end of an edge does not exist; `first_row` numbers the first edge."""
    for end, ids, node_type in (("source", src, edge_type[0]), ("destination", dst, edge_type[2])):
        what = f"{end} of {written(edge_type)}"
        check_integers(ids, f"the {what}")
        check_range(ids, num_nodes[node_type], what, node_type, first_row)


def check_integers(ids: np.ndarray, what: str) -> None:
    """Raise SpecError unless ids are integers, one per row."""
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        shape = f" of shape {ids.shape}" if ids.ndim != 1 else ""
        raise SpecError(f"{what} has ids of type {ids.dtype}{shape}", "give one integer per row")


def check_range(ids: np.ndarray, limit: int, what: str, node_type: str, first_row: int = 0) -> None:
    """Raise SpecError unless all ids are in `[0, limit)`."""
    if ids.size == 0 or (int(ids.min()) >= 0 and int(ids.max()) < limit):
        return
    row = int(np.argmax((ids < 0) | (ids >= limit)))
    raise SpecError(
        f"row {first_row + row:,} of the {what} is node {int(ids[row]):,}, but there are "
        f"{limit:,} {node_type} nodes",
        "remove the dangling ids or add the missing nodes; ids start at 0",
    )


def check_rows(what: str, column: Column, rows: np.ndarray, start: int, stop: int) -> None:
    """Validate rows `start` to `stop` of a column, as they were read."""
    expected = (stop - start, *column.shape)
    if rows.shape != expected or rows.dtype != column.dtype:
        raise SpecError(
            f"column {column.name} of {what} returned {rows.dtype} {rows.shape} for rows {start:,} "
            f"to {stop:,} instead of {column.dtype} {expected}",
            "check that its file is complete and has a row per node or edge",
        )
    if column.dtype.kind not in "biuf":
        raise SpecError(
            f"column {column.name} of {what} has type {column.dtype}", "give real numbers"
        )
    if column.dtype.kind != "f":
        return
    finite = np.isfinite(rows)
    if not finite.all():
        place = np.unravel_index(int(np.argmin(finite)), rows.shape)
        where = f", entry {', '.join(str(int(i)) for i in place[1:])}" if len(place) > 1 else ""
        raise SpecError(
            f"column {column.name} of {what} is {rows[place]} in row {start + int(place[0]):,}"
            f"{where}",
            "replace values that are not finite, for instance by 0 or the mean",
        )


def written(edge_type: EdgeType) -> str:
    """Format an edge type for messages."""
    return "-".join(edge_type)


def _check_unique(names: list[str], what: str, where: str) -> None:
    for i, name in enumerate(names):
        if name in names[:i]:
            raise SpecError(f"{where} has the {what} {name} twice", "use unique names")


def _checked_column(what: str, column: Column) -> Column:
    def read(start: int, stop: int) -> np.ndarray:
        rows = column.read(start, stop)
        check_rows(what, column, rows, start, stop)
        return rows

    return replace(column, read=read)


def _checked_nodes(table: NodeTable) -> NodeTable:
    what = f"{table.name} nodes"
    return replace(table, columns=tuple(_checked_column(what, each) for each in table.columns))


def _checked_edges(table: EdgeTable, num_nodes: dict[str, int]) -> EdgeTable:
    what = f"{written(table.edge_type)} edges"

    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        row = 0
        for src, dst in table.chunks():
            if src.shape != dst.shape:
                raise SpecError(
                    f"{what} have {src.size:,} sources and {dst.size:,} destinations from row "
                    f"{row:,} on",
                    "give one of each per edge",
                )
            check_ends(table.edge_type, src, dst, num_nodes, row)
            row += src.size
            yield src, dst
        if row != table.num_edges:
            raise SpecError(
                f"there are {row:,} {what}, but {table.num_edges:,} are declared",
                "check that the file is complete",
            )

    columns = tuple(_checked_column(what, each) for each in table.columns)
    return replace(table, chunks=chunks, columns=columns)


def _read_through(column: Column, num_rows: int) -> None:
    row_bytes = column.dtype.itemsize * int(np.prod(column.shape, dtype=np.int64))
    num_chunk_rows = max(1, CHUNK_BYTES // max(1, row_bytes))
    for start in range(0, num_rows, num_chunk_rows):
        column.read(start, min(start + num_chunk_rows, num_rows))
