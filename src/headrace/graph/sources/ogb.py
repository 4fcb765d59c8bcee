"""Node-property datasets of the Open Graph Benchmark, read from the unpacked download.

Supports three layouts without the `ogb` package: CSV files (ogbn-arxiv, ogbn-products,
ogbn-proteins), npz files (ogbn-papers100M) and heterogeneous CSV files (ogbn-mag).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.schema import Column, EdgeTable, EdgeType, GraphSource, NodeTable
from headrace.graph.sources.arrays import EDGE, NODE, both_ways
from headrace.graph.sources.chunks import RowStream
from headrace.graph.sources.npz import names_of, open_column, read_npz, stream_rows
from headrace.graph.sources.validate import check_names

_SPLIT_FILES = {"train": "train", "val": "valid", "test": "test"}
_INT64 = np.dtype(np.int64)


def is_ogb(directory: Path) -> bool:
    """Whether a directory contains an OGB dataset."""
    raw = directory / "raw"
    names = ("edge.csv.gz", "data.npz", "num-node-dict.csv.gz")
    return any((raw / name).exists() for name in names)


def from_ogb(
    directory: str | Path, *, split: str | None = None, add_reverse: bool = False
) -> GraphSource:
    """Read an OGB dataset from its raw files.

    Args:
        directory: Contains the folders `raw` and `split`.
        split: Folder within `split`; required if there are several.
        add_reverse: Add the reverse of every edge. Needed for ogbn-products and ogbn-proteins,
            which store each edge once (`add_inverse_edge` in OGB). In a heterogeneous graph the
            reverse edges get relations `rev_...`.
    """
    root = Path(directory)
    raw = root / "raw"
    if not is_ogb(root):
        raise SpecError(
            f"{root} has no raw/edge.csv.gz, raw/data.npz or raw/num-node-dict.csv.gz",
            "give the directory of the unpacked OGB download",
        )
    if (raw / "num-node-dict.csv.gz").exists():
        source = _typed(root, split, add_reverse)
    elif (raw / "data.npz").exists():
        source = _binary(root, split, add_reverse)
    else:
        source = _plain(root, split, add_reverse)
    check_names(source)
    return source


def _plain(root: Path, split: str | None, add_reverse: bool) -> GraphSource:
    raw = root / "raw"
    nodes = NodeTable(
        NODE,
        _only_number(raw / "num-node-list.csv.gz"),
        _columns(raw, "node", "x") + _labels(raw / "node-label.csv.gz"),
        _splits(root, split),
    )
    edges = _edge_table(EDGE, raw)
    return GraphSource(root.name, (nodes,), (_interleaved(edges) if add_reverse else edges,))


def _typed(root: Path, split: str | None, add_reverse: bool) -> GraphSource:
    raw = root / "raw"
    nodes = []
    for name, num_nodes in _numbers_by_type(raw / "num-node-dict.csv.gz").items():
        columns = _columns(raw / "node-feat" / name, "node", "x")
        label = raw / "node-label" / name / "node-label.csv.gz"
        nodes.append(
            NodeTable(name, num_nodes, columns + _labels(label), _splits(root, split, name))
        )
    tables = []
    for folder in sorted((raw / "relations").glob("*")):
        edge_type = tuple(folder.name.split("___"))
        if len(edge_type) != 3:
            raise SpecError(f"{folder} is not an edge type", "name it source___relation___target")
        tables.append(_edge_table(edge_type, folder))
    if not tables:
        raise SpecError(f"{raw / 'relations'} has no edges", "check that the download is complete")
    edges = both_ways(tuple(tables)) if add_reverse else tuple(tables)
    return GraphSource(root.name, tuple(nodes), edges)


def _binary(root: Path, split: str | None, add_reverse: bool) -> GraphSource:
    path = root / "raw" / "data.npz"
    num_nodes = _only_entry(path, "num_nodes_list")
    names = names_of(path)

    def columns(prefix: str, feature: str) -> tuple[Column, ...]:
        known = {"edge_index": None, f"{prefix}_feat": feature}
        members = [name for name in names if name.startswith(f"{prefix}_")]
        return tuple(
            open_column(path, member, known.get(member) or member)
            for member in members
            if known.get(member, member) is not None
        )

    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        _, src = stream_rows(path, "edge_index", 0)
        _, dst = stream_rows(path, "edge_index", 1)
        return zip(src, dst, strict=True)

    label_path = root / "raw" / "node-label.npz"
    labels = _label_column(read_npz(label_path)["node_label"]) if label_path.exists() else ()
    num_edges, _ = stream_rows(path, "edge_index", 0)
    nodes = NodeTable(NODE, num_nodes, columns("node", "x") + labels, _splits(root, split))
    edges = EdgeTable(EDGE, num_edges, chunks, columns("edge", "edge_attr"))
    return GraphSource(root.name, (nodes,), (_interleaved(edges) if add_reverse else edges,))


def _edge_table(edge_type: EdgeType, folder: Path) -> EdgeTable:
    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for block in csv_blocks(folder / "edge.csv.gz", _INT64, 2):
            yield np.ascontiguousarray(block[:, 0]), np.ascontiguousarray(block[:, 1])

    num_edges = _only_number(folder / "num-edge-list.csv.gz")
    return EdgeTable(edge_type, num_edges, chunks, _columns(folder, "edge", "edge_attr"))


def _columns(folder: Path, prefix: str, feature: str) -> tuple[Column, ...]:
    """Features, and further files such as `node_year.csv.gz` under their own names."""
    files = [(folder / f"{prefix}-feat.csv.gz", feature)]
    files += [(path, path.name.split(".")[0]) for path in sorted(folder.glob(f"{prefix}_*.csv.gz"))]
    return tuple(csv_column(path, name) for path, name in files if path.exists())


def _labels(path: Path) -> tuple[Column, ...]:
    return _label_column(read_csv(path)) if path.exists() else ()


def _label_column(values: np.ndarray) -> tuple[Column, ...]:
    """Labels as integers if possible; -1 for missing labels, which OGB stores as NaN."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind == "f":
        known = np.where(np.isnan(values), -1, values)
        if bool((known == np.round(known)).all()):
            values = known.astype(_INT64)
    return (Column.of("y", values),)


def _splits(root: Path, split: str | None, node_type: str | None = None) -> dict[str, np.ndarray]:
    folders = sorted(path for path in (root / "split").glob("*") if path.is_dir())
    if split is not None:
        chosen = root / "split" / split
        if chosen not in folders:
            there = ", ".join(folder.name for folder in folders) or "none"
            raise SpecError(f"{root} has no split {split}", f"choose one of its splits: {there}")
    elif not folders:
        return {}
    elif len(folders) > 1:
        there = ", ".join(folder.name for folder in folders)
        raise SpecError(f"{root} has several splits", f"choose one: {there}")
    else:
        chosen = folders[0]
    folder = chosen if node_type is None else chosen / node_type
    return {
        name: np.sort(read_csv(folder / f"{file}.csv.gz")[:, 0])
        for name, file in _SPLIT_FILES.items()
        if (folder / f"{file}.csv.gz").exists()
    }


def _only_number(path: Path) -> int:
    return _single(path, read_csv(path).ravel())


def _only_entry(path: Path, member: str) -> int:
    if member not in names_of(path):
        raise SpecError(f"{path} has no array {member}", "check that the download is complete")
    column = open_column(path, member, member)
    return _single(path, column.read(0, 2))


def _single(path: Path, counts: np.ndarray) -> int:
    if len(counts) != 1:
        raise SpecError(f"{path} has {len(counts)} graphs", "give a dataset with one graph")
    return int(counts[0])


def _numbers_by_type(path: Path) -> dict[str, int]:
    import gzip

    try:
        with gzip.open(path, "rt") as file:
            names, counts = (line.split(",") for line in file.read().split())
        return {name: int(count) for name, count in zip(names, counts, strict=True)}
    except (OSError, EOFError, ValueError) as error:
        raise SpecError(
            f"{path} does not have one number per node type ({error})",
            "check that the download is complete and has one graph",
        ) from None


def _interleaved(table: EdgeTable) -> EdgeTable:
    """Every edge followed by its reverse, in the order of OGB's inverse edges."""

    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for src, dst in table.chunks():
            yield np.stack([src, dst], 1).ravel(), np.stack([dst, src], 1).ravel()

    columns = tuple(_doubled(column) for column in table.columns)
    return replace(table, num_edges=2 * table.num_edges, chunks=chunks, columns=columns)


def _doubled(column: Column) -> Column:
    def read(start: int, stop: int) -> np.ndarray:
        first = start // 2
        rows = np.repeat(column.read(first, (stop + 1) // 2), 2, axis=0)
        return rows[start - 2 * first : stop - 2 * first]

    return replace(column, read=read)


_BLOCK_BYTES = 4 << 20
_PEEKED_CHARACTERS = 1 << 16


def read_csv(path: Path) -> np.ndarray:
    """Read a small file, shape `(rows, fields)`: `int64`, or `float32` if a value has a point."""
    dtype, num_fields = _peek(path)
    blocks = list(csv_blocks(path, dtype, num_fields))
    return np.concatenate(blocks) if blocks else np.empty((0, num_fields), dtype)


def csv_column(path: Path, name: str) -> Column:
    """Open a file with a row per node or edge as a column; scalar rows if it has one field."""
    dtype, num_fields = _peek(path)
    shape = (num_fields,) if num_fields > 1 else ()

    def rows_from(_: int) -> Iterator[np.ndarray]:
        for block in csv_blocks(path, dtype, num_fields):
            yield block.reshape(-1, *shape)

    stream = RowStream(dtype, shape, lambda _: 0, rows_from)
    return Column(name, dtype, shape, stream.read)


def csv_blocks(path: Path, dtype: np.dtype, num_fields: int) -> Iterator[np.ndarray]:
    """Read rows in blocks of shape `(rows, num_fields)`."""
    arrow, csv = _arrow()
    names = [str(i) for i in range(num_fields)]
    kind = arrow.from_numpy_dtype(dtype)
    try:
        reader = csv.open_csv(
            path,
            csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=names),
            csv.ParseOptions(),
            csv.ConvertOptions(column_types=dict.fromkeys(names, kind)),
        )
        for batch in reader:
            block = np.empty((batch.num_rows, num_fields), dtype)
            for i, field in enumerate(batch.columns):
                # A missing float is NaN; a missing integer cannot be represented.
                if field.null_count and dtype.kind != "f":
                    raise SpecError(f"{path} has an empty field", "write a number in every field")
                block[:, i] = field.to_numpy(zero_copy_only=False)
            yield block
    except (arrow.ArrowException, OSError, EOFError) as error:
        raise _unreadable(path, error) from None


def _peek(path: Path) -> tuple[np.dtype, int]:
    """Dtype and number of fields, from the first rows."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            text = file.read(_PEEKED_CHARACTERS)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    if not text:
        return np.dtype(np.int64), 1
    lines = text.splitlines()
    is_float = any(mark in text.lower() for mark in (".", "e", "nan", ",,"))
    return np.dtype(np.float32 if is_float else np.int64), lines[0].count(",") + 1


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import csv
    except ImportError:
        raise MissingExtraError(
            "pyarrow is not installed", "pip install 'headrace[partition]'"
        ) from None
    return pyarrow, csv


def _unreadable(path: Path, error: Exception) -> SpecError:
    if isinstance(error, FileNotFoundError):
        return SpecError(f"{path} does not exist", "check that the download is complete")
    return SpecError(
        f"{path} cannot be read as numbers ({error})", "download it again if it is truncated"
    )
