"""Datasets in npz files: Planetoid, the GNN benchmark, and typed edges with hashed strings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.kernels.sparse import multiply_rows
from headrace.graph.schema import SPLITS, Column, GraphSource, NodeTable
from headrace.graph.sources.arrays import (
    EDGE,
    NODE,
    both_ways,
    edge_table,
    node_table,
    random_splits,
    split_note,
)
from headrace.graph.sources.npz import read_npz

PROJECTED_WIDTH = 128
HASHED_WIDTH = 65_536
BENCHMARK_SHARES = (0.6, 0.2, 0.2)
TYPED_SHARES = (0.5, 0.1, 0.4)
"""Splits of the published baselines of these graphs."""


def from_npz(path: Path, seed: int) -> GraphSource:
    """Read a dataset from an npz file; the seed determines splits and projections it lacks."""
    arrays = read_npz(path)
    if "adj_indptr" in arrays:
        return _benchmark(path, arrays, seed)
    if "tf_ptr" in arrays:
        return _typed(path, arrays, seed)
    if "edge_index" in arrays:
        return _planetoid(path, arrays)
    raise SpecError(
        f"{path} has the arrays {', '.join(arrays)}, which is not a supported layout",
        "give edge_index, y and x_* (Planetoid), adj_*, attr_* and labels (GNN benchmark), or "
        "src, dst, etype, rel and tf_* (typed)",
    )


def _planetoid(path: Path, arrays: Mapping[str, np.ndarray]) -> GraphSource:
    _need(path, arrays, "y", "x_data", "x_indices", "x_indptr", "x_shape")
    y = arrays["y"].astype(np.int64)
    masks = {split: arrays[f"{split}_mask"] for split in SPLITS if f"{split}_mask" in arrays}
    nodes = node_table(NODE, len(y), {"y": y}, masks)
    x = _sparse(path, arrays, "x", len(y)).column("x")
    src, dst = arrays["edge_index"].astype(np.int64)
    nodes = NodeTable(NODE, len(y), (x, *nodes.columns), nodes.splits)
    return GraphSource(path.stem, (nodes,), (edge_table(EDGE, src, dst),))


def _benchmark(path: Path, arrays: Mapping[str, np.ndarray], seed: int) -> GraphSource:
    """As PyG reads it: binary features, no loops, every edge once in both directions."""
    _need(path, arrays, "adj_indices", "labels", *(f"attr_{key}" for key in _SPARSE_KEYS))
    y = arrays["labels"].astype(np.int64)
    x = _sparse(path, arrays, "attr", len(y))
    x = SparseRows(x.indptr, x.indices, (x.values > 0).astype(np.float32), x.num_columns)
    dst, indptr = arrays["adj_indices"].astype(np.int64), arrays["adj_indptr"]
    if (
        len(indptr) != len(y) + 1
        or int(indptr[-1]) != len(dst)
        or bool((np.diff(indptr) < 0).any())
    ):
        raise SpecError(f"adj_indptr in {path} does not fit its edges or labels", "save it again")
    src = np.repeat(np.arange(len(y)), np.diff(indptr))
    if dst.size and (int(dst.min()) < 0 or int(dst.max()) >= len(y)):
        raise SpecError(f"adj_indices in {path} has ids outside {len(y):,} nodes", "save it again")
    src, dst = undirected(src, dst, len(y))
    splits = random_splits(np.arange(len(y)), BENCHMARK_SHARES, seed)
    nodes = NodeTable(NODE, len(y), (x.column("x"), Column.of("y", y)), splits)
    note = split_note(BENCHMARK_SHARES, seed)
    return GraphSource(path.stem, (nodes,), (edge_table(EDGE, src, dst),), note=note)


def _typed(path: Path, arrays: Mapping[str, np.ndarray], seed: int) -> GraphSource:
    _need(path, arrays, "src", "dst", "etype", "rel", "y", "tf_idx", "tf_val")
    y = arrays["y"].astype(np.int64)
    texts = SparseRows(arrays["tf_ptr"], arrays["tf_idx"], arrays["tf_val"], HASHED_WIDTH)
    texts.check(str(path))
    if len(texts.indptr) != len(y) + 1:
        raise SpecError(f"tf_ptr in {path} does not fit its {len(y):,} labels", "save it again")
    tables = []
    for index, relation in enumerate(arrays["rel"]):
        rows = np.flatnonzero(arrays["etype"] == index)
        src, dst = arrays["src"][rows], arrays["dst"][rows]
        tables.append(edge_table((NODE, str(relation), NODE), src, dst))
    x = projected(texts, "x", PROJECTED_WIDTH, seed)
    splits = random_splits(np.arange(len(y)), TYPED_SHARES, seed)
    nodes = NodeTable(NODE, len(y), (x, Column.of("y", y)), splits)
    note = split_note(TYPED_SHARES, seed)
    return GraphSource(path.stem, (nodes,), both_ways(tuple(tables)), note=note)


def undirected(src: np.ndarray, dst: np.ndarray, num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Every edge in both directions, without loops and parallel edges, ordered by source."""
    is_edge = src != dst
    src, dst = src[is_edge].astype(np.int64), dst[is_edge].astype(np.int64)
    pairs = np.sort(np.concatenate([src * num_nodes + dst, dst * num_nodes + src]))
    pairs = pairs[np.concatenate([[True], pairs[1:] != pairs[:-1]])[: len(pairs)]]
    return pairs // num_nodes, pairs % num_nodes


_SPARSE_KEYS = ("data", "indices", "indptr", "shape")


def _sparse(path: Path, arrays: Mapping[str, np.ndarray], prefix: str, num_rows: int) -> SparseRows:
    data, indices, indptr, shape = (arrays[f"{prefix}_{key}"] for key in _SPARSE_KEYS)
    rows = SparseRows(indptr, indices, data, int(shape[1]))
    rows.check(f"{prefix} in {path}")
    if len(indptr) != num_rows + 1:
        raise SpecError(
            f"{prefix} in {path} has {len(indptr) - 1:,} rows for {num_rows:,} labels",
            "give one row per node",
        )
    return rows


def _need(path: Path, arrays: Mapping[str, np.ndarray], *names: str) -> None:
    missing = [name for name in names if name not in arrays]
    if missing:
        raise SpecError(f"{path} lacks {', '.join(missing)}", "download the file again")


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix (CSR)."""

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    num_columns: int

    def check(self, what: str) -> None:
        """Raise SpecError if the arrays are inconsistent."""
        lengths = np.diff(self.indptr)
        if (
            len(self.indptr) == 0
            or bool((lengths < 0).any())
            or int(self.indptr[-1]) != len(self.indices)
            or len(self.indices) != len(self.values)
        ):
            raise SpecError(f"the sparse rows of {what} do not fit their entries", "save it again")
        if self.indices.size and not (
            int(self.indices.min()) >= 0 and int(self.indices.max()) < self.num_columns
        ):
            raise SpecError(
                f"{what} has entries outside its {self.num_columns} columns", "save it again"
            )

    def dense(self, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` as `float32`; duplicate entries are summed."""
        rows = np.zeros((stop - start, self.num_columns), np.float32)
        where = slice(self.indptr[start], self.indptr[stop])
        lengths = np.diff(self.indptr[start : stop + 1])
        places = np.repeat(np.arange(stop - start), lengths), self.indices[where]
        np.add.at(rows, places, self.values[where].astype(np.float32))
        return rows

    def column(self, name: str) -> Column:
        """All rows as a dense column."""
        return Column(name, np.dtype(np.float32), (self.num_columns,), self.dense)


def projected(rows: SparseRows, name: str, width: int, seed: int) -> Column:
    """Project rows with a sparse random matrix, which preserves distances (Achlioptas 2003).

    A third of the matrix entries are plus or minus sqrt(3), the others zero: rows of length one get
    entries of variance one.
    """
    rng = np.random.default_rng(seed)
    dice = rng.integers(0, 6, (rows.num_columns, width), np.int8)
    matrix = (dice == 0).astype(np.float32) - (dice == 1)
    matrix *= np.float32(3**0.5)
    values = rows.values.astype(np.float32)

    def read(start: int, stop: int) -> np.ndarray:
        product: np.ndarray = multiply_rows(rows.indptr, rows.indices, values, matrix, start, stop)
        return product

    return Column(name, np.dtype(np.float32), (width,), read)
