"""Writer of partitioned graphs: every table is read in order, once unless features are encoded.

New ids ascend with original ids within each second-level cluster, so a chunk of rows becomes one
contiguous write per cluster.
"""

from __future__ import annotations

import dataclasses
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from pydantic import JsonValue, TypeAdapter

from headrace.core.errors import SpecError
from headrace.graph.adjacency import Csc
from headrace.graph.build.edge_writer import EdgeWriter
from headrace.graph.build.layout import DiskLayout
from headrace.graph.build.node_ids import NodeIds, number
from headrace.graph.build.read_chunks import read_chunks
from headrace.graph.build.resume_log import ResumeLog
from headrace.graph.format.array_files import (
    SplitArray,
    check_space,
    is_intact,
    map_array,
    reporting_full_disk,
    write_array,
)
from headrace.graph.format.dtypes import convert
from headrace.graph.format.manifest import (
    LABELS,
    ColumnInfo,
    EdgeInfo,
    FileInfo,
    LinkInfo,
    Manifest,
    NodeInfo,
    ids_path,
    link_path,
    node_path,
    save_manifest,
    starts_path,
)
from headrace.graph.schema import SPLITS, Column, GraphSource, Nobody, Watcher

_PROGRESS = "progress.json"
_FILES = TypeAdapter(dict[str, FileInfo])


def write_parts(
    source: GraphSource,
    cscs: Sequence[Csc],
    parts: np.ndarray,
    clusters: np.ndarray | None,
    folder: Path,
    *,
    num_parts: int,
    features: str | None = None,
    method: str = "",
    seed: int = 0,
    shares: Sequence[float] | None = None,
    quality: object = None,
    watcher: Watcher | None = None,
) -> Manifest:
    """Write all partitions and their manifest; resumes an interrupted call with equal arguments.

    Memory is about 16 bytes per node plus some chunks, 40 with `sparse` features, independent of
    the number of edges.

    Args:
        source: The graph. Columns are read in order; features up to three times with `auto`.
        cscs: Topology of every edge type.
        parts: Partition of every node, all types concatenated.
        clusters: Second-level cluster of every node within its partition; `None` for one each.
        folder: Output directory, created if missing; incomplete until this returns.
        num_parts: Number of partitions.
        features: How columns named `x` are stored: `float32`, `float16`, `bfloat16`, `int8` or
            `int4` if they have floating-point values, `auto` for the smallest lossless form;
            unchanged if `None`.
        method: Name of the partitioner, for the manifest.
        seed: Seed of the partitioner, for the manifest.
        shares: Target fraction per partition, for the manifest; equal if `None`.
        quality: Quality metrics, for the manifest: a mapping or a dataclass.
        watcher: Receives progress.

    Raises:
        SpecError: The source or the assignment is invalid, or the disk is full.
    """
    layout = DiskLayout.of(source, features, watcher)
    numberings = number(source, parts, clusters, num_parts)
    needed_bytes = layout.num_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    check_space(folder, needed_bytes)
    crcs = [zlib.crc32(np.ascontiguousarray(a).data) for a in (parts, clusters) if a is not None]
    progress = ResumeLog(folder / _PROGRESS, repr((layout.describe(), num_parts, crcs)))
    if not progress.has_begun:
        _clear(folder)
    writing = _GraphWriter(layout, cscs, numberings, folder, progress, watcher or Nobody())
    with reporting_full_disk(folder, needed_bytes):
        nodes, edges = writing.write_nodes(), writing.write_edges()
        manifest = Manifest(
            version=2 if layout.is_encoded else 1,
            name=source.name,
            num_parts=num_parts,
            method=method,
            seed=seed,
            shares=tuple(shares) if shares is not None else (1 / num_parts,) * num_parts,
            num_clusters=numberings[0].bounds.shape[1] - 1,
            nodes=nodes,
            edges=edges,
            links=writing.write_links(),
            quality=cast("Mapping[str, JsonValue]", _plain(quality)) if quality else {},
            note=source.note,
            files=dict(sorted(writing.files.items())),
        )
        save_manifest(manifest, folder)
    (folder / _PROGRESS).unlink()
    return manifest


class _GraphWriter:
    """One call of `write_parts`."""

    def __init__(
        self,
        layout: DiskLayout,
        cscs: Sequence[Csc],
        numberings: Sequence[NodeIds],
        folder: Path,
        progress: ResumeLog,
        watcher: Watcher,
    ) -> None:
        self._layout = layout
        self._source = layout.source
        self._cscs = cscs
        self._numberings = numberings
        self._folder = folder
        self._progress = progress
        self._watcher = watcher
        self.files: dict[str, FileInfo] = {}

    def write_nodes(self) -> tuple[NodeInfo, ...]:
        found = []
        for t, table in enumerate(self._source.nodes):
            numbering, columns = self._numberings[t], self._layout.node_columns[t]
            splits = {}
            self._step(f"node-{t}", partial(self._write_ids, t))
            for split in SPLITS:
                if split in table.splits:
                    local = _local(numbering, table.splits[split])
                    splits[split] = tuple(len(ids) for ids in local)
                    for part, ids in enumerate(local):
                        path = node_path(part, t, split)
                        self.files |= write_array(self._folder, path, ids)
            for column, info in zip(table.columns, columns, strict=True):
                step = f"node-{t}/{info.name}"
                self._step(step, partial(self._write_column, t, column, info))
            offsets = tuple(numbering.offsets.tolist())
            found.append(
                NodeInfo(
                    name=table.name,
                    offsets=offsets,
                    columns=columns,
                    splits=splits,
                    num_classes=self._num_classes(t, columns),
                )
            )
        return tuple(found)

    def _num_classes(self, t: int, columns: Sequence[ColumnInfo]) -> int | None:
        """Largest label plus one, for processes that do not have all partitions."""
        labels = next((column for column in columns if column.name == LABELS), None)
        if labels is None or labels.shape or not labels.dtype.startswith(("int", "uint")):
            return None
        paths = [node_path(part, t, LABELS) for part in range(len(self._numberings[t].offsets) - 1)]
        parts = [map_array(self._folder / path, self.files[path]) for path in paths]
        return max((int(each.max(initial=-1)) for each in parts), default=-1) + 1

    def write_edges(self) -> tuple[EdgeInfo, ...]:
        found = []
        for e, (table, csc) in enumerate(zip(self._source.edges, self._cscs, strict=True)):
            src, relation, dst = table.edge_type
            columns = self._layout.edge_columns[e]
            ends = [self._numberings[self._source.type_index(name)] for name in (src, dst)]
            writer = EdgeWriter(self._folder, e, table, columns, csc, ends[0], ends[1])
            self._step(f"edge-{e}", partial(writer.write, self._watcher))
            found.append(
                EdgeInfo(
                    src=src,
                    relation=relation,
                    dst=dst,
                    offsets=tuple(writer.offsets.tolist()),
                    columns=columns,
                    has_ids=table.keep_ids,
                )
            )
        return tuple(found)

    def write_links(self) -> tuple[LinkInfo, ...]:
        types = [table.edge_type for table in self._source.edges]
        found = []
        for links in self._source.links:
            src, dst = (self._source.type_index(links.edge_type[i]) for i in (0, 2))
            ends = [
                self._numberings[src].new_ids[links.src].astype(np.int64),
                self._numberings[dst].new_ids[links.dst].astype(np.int64),
            ]
            e = types.index(links.edge_type)
            self.files |= write_array(self._folder, link_path(links.split, e), np.stack(ends))
            split = cast("Literal['train', 'val', 'test']", links.split)
            found.append(LinkInfo(split=split, edge=e, num_links=len(links.src)))
        return tuple(found)

    def _step(self, name: str, write: Callable[[], dict[str, FileInfo]]) -> None:
        if self._progress.is_done(name):
            files = _FILES.validate_python(self._progress.result(name))
            if all(is_intact(self._folder / path, info) for path, info in files.items()):
                self.files |= files
                return
        files = write()
        self._progress.finish(name, _FILES.dump_python(files, mode="json"))
        self.files |= files

    def _write_ids(self, t: int) -> dict[str, FileInfo]:
        numbering = self._numberings[t]
        dtype = numbering.new_ids.dtype
        files = write_array(self._folder, ids_path(t), numbering.new_ids)
        for part, bounds in enumerate(numbering.bounds):
            path = node_path(part, t, "clusters")
            files |= write_array(self._folder, path, bounds - bounds[0])
        # Original ids are row numbers.
        ids = Column("ids", dtype, (), lambda start, stop: np.arange(start, stop, dtype=dtype))
        return files | self._write_rows(t, ids, ColumnInfo(name="ids", dtype=dtype.name))

    def _write_column(self, t: int, column: Column, info: ColumnInfo) -> dict[str, FileInfo]:
        table = self._source.nodes[t]
        is_sparse = info.codec is not None and info.codec.is_sparse
        num_reads = 2 if is_sparse else 1
        self._watcher.begin(f"writing {info.name} of {table.name}", num_reads * table.num_nodes)
        if is_sparse:
            return self._write_sparse(t, column, info)
        return self._write_rows(t, column, info)

    def _write_rows(self, t: int, column: Column, info: ColumnInfo) -> dict[str, FileInfo]:
        numbering, codec = self._numberings[t], info.codec
        dtype, shape = (info.dtype, info.shape)
        if codec is not None:
            dtype, shape = "uint8", (codec.stored_width,)
        split = SplitArray(self._folder, self._paths(t, info), numbering.offsets, dtype, shape)
        for start, rows in read_chunks(column, len(numbering.new_ids)):
            new_ids, order = self._order(t, start, len(rows))
            stored = convert(rows, info.dtype)
            if codec is not None:
                stored = codec.encode(np.ascontiguousarray(stored), start)
            split.put(new_ids, np.ones(len(rows), np.int64), stored[order])
        return split.seal()

    def _write_sparse(self, t: int, column: Column, info: ColumnInfo) -> dict[str, FileInfo]:
        """Rows have different lengths: their offsets are counted before they are written."""
        numbering, codec = self._numberings[t], info.codec
        assert codec is not None
        lengths = np.empty(len(numbering.new_ids), np.int64)
        for start, rows in read_chunks(column, len(lengths)):
            new_ids, order = self._order(t, start, len(rows))
            lengths[new_ids] = codec.lengths(_ordered(rows, info.dtype, order))
        starts = np.append(0, np.cumsum(lengths))
        bounds = starts[numbering.offsets]
        split = SplitArray(self._folder, self._paths(t, info), bounds, "uint16")
        for start, rows in read_chunks(column, len(lengths)):
            new_ids, order = self._order(t, start, len(rows))
            units = codec.encode(_ordered(rows, info.dtype, order), start)
            if len(units) != lengths[new_ids].sum():
                raise SpecError(f"{info.name!r} changed while it was read", "try again")
            split.put(starts[new_ids], lengths[new_ids], units)
        files = split.seal()
        for part, (low, high) in enumerate(pairwise(numbering.offsets.tolist())):
            own = starts[low : high + 1] - starts[low]
            files |= write_array(self._folder, starts_path(part, t, info.name), own)
        return files

    def _paths(self, t: int, info: ColumnInfo) -> list[str]:
        return [node_path(part, t, info.name) for part in range(len(self._numberings[t].bounds))]

    def _order(self, t: int, start: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """New ids of rows in ascending order, and the positions of these rows."""
        new_ids = self._numberings[t].new_ids[start : start + num_rows].astype(np.int64)
        order = np.argsort(new_ids)
        return new_ids[order], order


def _ordered(rows: np.ndarray, dtype: str, order: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(convert(rows, dtype)[order])


def _local(numbering: NodeIds, ids: np.ndarray) -> list[np.ndarray]:
    """Local ids of some nodes, by partition, ascending."""
    offsets = numbering.offsets
    new_ids = np.sort(numbering.new_ids[ids].astype(np.int64))
    cuts = np.searchsorted(new_ids, offsets[1:-1])
    return [own - offset for own, offset in zip(np.split(new_ids, cuts), offsets, strict=False)]


def _clear(folder: Path) -> None:
    """Remove the files of a run with another assignment."""
    for pattern in ("part-*", "ids", "links"):
        for path in folder.glob(pattern):
            shutil.rmtree(path)


def _plain(value: Any) -> JsonValue:
    """Convert a value to JSON types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return cast("JsonValue", value)
