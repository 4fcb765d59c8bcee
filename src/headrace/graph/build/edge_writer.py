"""Writer of one edge type: each partition stores the in-edges of the nodes it owns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.adjacency import Csc
from headrace.graph.build.node_ids import NodeIds
from headrace.graph.build.read_chunks import read_chunks
from headrace.graph.format.array_files import SplitArray, write_array
from headrace.graph.format.dtypes import convert
from headrace.graph.format.manifest import ColumnInfo, FileInfo, edge_path, numpy_dtype
from headrace.graph.kernels.writing import copy_lists, copy_renamed, mark
from headrace.graph.schema import EdgeTable, Watcher

_CHUNK_NODES = 1 << 20
_CHUNK_EDGES = 1 << 23
"""32 MiB of sources per chunk."""


class EdgeWriter:
    """Writes one edge type; reads only the columns of its table, and the topology from `csc`."""

    def __init__(
        self,
        folder: Path,
        e: int,
        table: EdgeTable,
        columns: tuple[ColumnInfo, ...],
        csc: Csc,
        src: NodeIds,
        dst: NodeIds,
    ) -> None:
        _check(table, csc, len(src.new_ids), len(dst.new_ids))
        self._folder = folder
        self._e = e
        self._table = table
        self._columns = columns
        self._csc = csc
        self._src = src
        self._dst = dst
        self._num_parts = len(dst.bounds)
        self._indptr = self._new_indptr()
        self.offsets = self._indptr[dst.offsets]

    def write(self, watcher: Watcher) -> dict[str, FileInfo]:
        """Write all arrays of the edge type; progress counts columns read and edges written."""
        spools = self._spool(watcher)
        watcher.begin(f"writing edges {' '.join(self._table.edge_type)}", self._table.num_edges)
        indices = self._split("indices", self._src.new_ids.dtype.name)
        edge_ids = self._csc.edge_ids
        kept = None
        if self._table.keep_ids and edge_ids is not None:
            kept = self._split("ids", edge_ids.dtype.name)
        columns = [self._split(info.name, info.dtype, info.shape) for info in self._columns]
        for first, stop in self._chunks():
            rows, starts, lengths = self._order(first, stop)
            low, high = self._csc.indptr[first], self._csc.indptr[stop]
            sources = self._csc.indices[low:high]
            if high > low and not 0 <= sources.min() <= sources.max() < len(self._src.new_ids):
                raise SpecError(
                    f"edges {self._table.edge_type} have source ids that do not exist "
                    f"(there are {len(self._src.new_ids)} nodes)",
                    "remove these edges or add the nodes",
                )
            out = np.empty(high - low, self._src.new_ids.dtype)
            copy_renamed(self._csc.indptr, first, sources, rows, self._src.new_ids, out)
            indices.put(starts, lengths, out)
            if edge_ids is not None and (kept is not None or columns):
                own_ids = np.empty(high - low, edge_ids.dtype)
                copy_lists(self._csc.indptr, first, edge_ids[low:high], rows, own_ids)
                if kept is not None:
                    kept.put(starts, lengths, own_ids)
                for column, spool in zip(columns, spools, strict=True):
                    column.put(starts, lengths, spool[own_ids])
            watcher.advance(int(high - low))
        files = indices.seal()
        for split in ([kept] if kept is not None else []) + columns:
            files |= split.seal()
        del spools
        for i in range(len(columns)):
            self._spool_path(i).unlink()
        for part in range(self._num_parts):
            files |= self._write_part(part)
        return files

    def _write_part(self, part: int) -> dict[str, FileInfo]:
        low, high = self._dst.offsets[part : part + 2]
        indptr = self._indptr[low : high + 1] - self._indptr[low]
        files = write_array(self._folder, edge_path(part, self._e, "indptr"), indptr)
        dtype = self._src.new_ids.dtype
        path = self._folder / edge_path(part, self._e, "indices")
        is_source = np.zeros(len(self._src.new_ids), np.bool_)
        if indptr[-1] > 0:
            mark(np.memmap(path, dtype.newbyteorder("="), "r").view(np.ndarray), is_source)
        own_low, own_high = self._src.offsets[part : part + 2]
        is_source[own_low:own_high] = False
        halo = np.flatnonzero(is_source).astype(dtype)
        return files | write_array(self._folder, edge_path(part, self._e, "halo"), halo)

    def _new_indptr(self) -> np.ndarray:
        """First in-edge of each destination, in the order of new ids."""
        indptr = np.zeros(len(self._dst.new_ids) + 1, np.int64)
        for first in range(0, len(self._dst.new_ids), _CHUNK_NODES):
            stop = min(first + _CHUNK_NODES, len(self._dst.new_ids))
            degrees = np.diff(self._csc.indptr[first : stop + 1])
            if degrees.min(initial=0) < 0:
                raise SpecError(
                    f"the topology of {self._table.edge_type} is invalid, its indptr descends",
                    "build it again",
                )
            indptr[self._dst.new_ids[first:stop] + 1] = degrees
        np.cumsum(indptr, out=indptr)
        return indptr

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Ranges of destinations with about equal numbers of edges."""
        indptr, first = self._csc.indptr, 0
        num_nodes = len(indptr) - 1
        while first < num_nodes:
            stop = int(np.searchsorted(indptr, indptr[first] + _CHUNK_EDGES, side="right")) - 1
            stop = max(first + 1, min(stop, first + _CHUNK_NODES, num_nodes))
            yield first, stop
            first = stop

    def _order(self, first: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Destinations of a chunk ordered by new id; start and length of each list."""
        new_ids = self._dst.new_ids[first:stop]
        rows = np.argsort(new_ids)
        starts = self._indptr[new_ids[rows]]
        return rows, starts, np.diff(self._csc.indptr[first : stop + 1])[rows]

    def _split(self, name: str, dtype: str, shape: tuple[int, ...] = ()) -> SplitArray:
        paths = [edge_path(part, self._e, name) for part in range(self._num_parts)]
        return SplitArray(self._folder, paths, self.offsets, dtype, shape)

    def _spool(self, watcher: Watcher) -> list[np.ndarray]:
        """Write columns to mapped temporary files, because they are read in random order."""
        spools = []
        for i, info in enumerate(self._columns):
            watcher.begin(
                f"reading {info.name} of {' '.join(self._table.edge_type)}", self._table.num_edges
            )
            dtype, num_edges = numpy_dtype(info.dtype), self._table.num_edges
            with self._spool_path(i).open("wb") as file:
                for _, rows in read_chunks(self._table.columns[i], num_edges):
                    convert(rows, info.dtype).tofile(file)
            shape = (num_edges, *info.shape)
            if num_edges * math.prod(info.shape) == 0:
                spools.append(np.empty(shape, dtype))
            else:
                mapped = np.memmap(self._spool_path(i), dtype, "r", shape=shape)
                spools.append(mapped.view(np.ndarray))
        return spools

    def _spool_path(self, i: int) -> Path:
        return self._folder / f"spool-{i}.bin"


def _check(table: EdgeTable, csc: Csc, num_src: int, num_dst: int) -> None:
    if len(csc.indptr) != num_dst + 1 or len(csc.indices) != csc.indptr[-1]:
        raise SpecError(
            f"the topology of {table.edge_type} has {len(csc.indptr) - 1} destinations and "
            f"{len(csc.indices)} edges, the graph has {num_dst} and {table.num_edges}",
            "build it again",
        )
    if len(csc.indices) != table.num_edges:
        raise SpecError(
            f"the topology of {table.edge_type} has {len(csc.indices)} edges, the table has "
            f"{table.num_edges}",
            "build it again",
        )
    if csc.edge_ids is None and (table.keep_ids or table.columns):
        raise SpecError(
            f"the topology of {table.edge_type} lacks edge ids, which its ids or columns need",
            "build it with edge ids",
        )
    if csc.edge_ids is not None and len(csc.edge_ids) != len(csc.indices):
        raise SpecError(
            f"the topology of {table.edge_type} has {len(csc.edge_ids)} edge ids for "
            f"{len(csc.indices)} edges",
            "build it again",
        )
