"""Access to a partitioned graph: arrays are memory-mapped on first use and not copied."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.core.errors import DamagedGraphError, MissingExtraError, SpecError
from headrace.graph.format.array_files import map_array
from headrace.graph.format.checksums import check_file
from headrace.graph.format.data_view import DataView
from headrace.graph.format.manifest import (
    FEATURES,
    PARTITION_AGAIN,
    ColumnInfo,
    Manifest,
    edge_path,
    ids_path,
    link_path,
    load_manifest,
    node_path,
    numpy_dtype,
    starts_path,
)
from headrace.graph.schema import EdgeType

if TYPE_CHECKING:
    import torch

    from headrace.graph.format.row_codec import StoredRows


def open_graph(path: str | os.PathLike[str]) -> PartitionedGraph:
    """Open a graph that `headrace partition` wrote.

    Takes milliseconds for any size: arrays are memory-mapped on first use, and all processes of a
    machine share their pages.

    Raises:
        SpecError: The directory is not a partitioned graph, or its manifest is invalid.
    """
    folder = Path(path)
    return PartitionedGraph(folder, load_manifest(folder))


class PartitionedGraph(DataView):
    """A partitioned graph with the interface of PyG's `Data` and `HeteroData`.

    Nodes have two ids per type: the original id, which is the row number in the source, and the new
    id. Each partition owns a contiguous range of new ids.

    Attributes:
        folder: Directory of the graph.
        manifest: Description of its contents.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._arrays: dict[str, np.ndarray] = {}
        self._original_ids: dict[str, np.ndarray] = {}
        self._offsets = {node.name: np.array(node.offsets, np.int64) for node in manifest.nodes}
        self._parts = tuple(Partition(self, number) for number in range(manifest.num_parts))

    def __reduce__(self) -> tuple[object, ...]:
        # Pickling would copy the mapped arrays.
        return open_graph, (self.folder,)

    def __repr__(self) -> str:
        return f"<{self.manifest.name} in {self.num_parts} parts at {self.folder}>"

    @property
    def num_parts(self) -> int:
        """Number of partitions."""
        return self.manifest.num_parts

    @property
    def node_types(self) -> tuple[str, ...]:
        """Names of all node types."""
        return tuple(node.name for node in self.manifest.nodes)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """All edge types."""
        return tuple(edge.edge_type for edge in self.manifest.edges)

    @property
    def feature_forms(self) -> tuple[str, ...]:
        """How floating-point features `x` are stored: dtypes and encodings."""
        columns = (column for node in self.manifest.nodes for column in node.columns)
        return tuple(
            dict.fromkeys(
                column.dtype if column.encoding is None else column.encoding.kind
                for column in columns
                if column.name == FEATURES and column.shape and "float" in column.dtype
            )
        )

    def part(self, number: int) -> Partition:
        """One partition.

        Raises:
            SpecError: The number is out of range.
        """
        if not 0 <= number < self.num_parts:
            raise SpecError(
                f"there is no graph partition {number}, the graph has {self.num_parts}",
                f"use 0 to {self.num_parts - 1}",
            )
        return self._parts[number]

    def num_nodes_of(self, node_type: str) -> int:
        """Number of nodes of one type in all partitions."""
        return self.manifest.nodes[self.manifest.node_index(node_type)].num_nodes

    def num_edges_of(self, edge_type: EdgeType) -> int:
        """Number of edges of one type in all partitions."""
        return self.manifest.edges[self.manifest.edge_index(edge_type)].num_edges

    def offsets(self, node_type: str) -> np.ndarray:
        """Partition `p` owns the new ids from `offsets[p]` to `offsets[p + 1]`."""
        self.manifest.node_index(node_type)
        return self._offsets[node_type]

    def owner(self, node_type: str, new_ids: np.ndarray) -> np.ndarray:
        """Partition number of every node.

        Raises:
            SpecError: An id is out of range.
        """
        offsets = self.offsets(node_type)
        _check_ids(node_type, new_ids, int(offsets[-1]))
        return np.searchsorted(offsets, new_ids, side="right") - 1

    def to_new(self, node_type: str, original_ids: np.ndarray) -> np.ndarray:
        """New ids of nodes, `int64`.

        Raises:
            SpecError: An id is out of range.
        """
        t = self.manifest.node_index(node_type)
        _check_ids(node_type, original_ids, self.num_nodes_of(node_type))
        new_ids = np.asarray(self.array(ids_path(t))[original_ids], np.int64)
        self.check_values(ids_path(t), new_ids, self.num_nodes_of(node_type))
        return new_ids

    def to_original(self, node_type: str, new_ids: np.ndarray) -> np.ndarray:
        """Original ids of nodes, `int64`.

        Raises:
            SpecError: An id is out of range.
        """
        partitions = self.owner(node_type, new_ids)
        original = np.empty(np.shape(new_ids), np.int64)
        for number in np.unique(partitions):
            part, own = self.part(number), partitions == number
            original[own] = part.original_ids(node_type)[new_ids[own] - part.start(node_type)]
        return original

    def original_ids(self, node_type: str) -> np.ndarray:
        """Original ids of all nodes by new id, also of partitions on other machines.

        They are computed at first use and take 4 or 8 bytes per node.
        """
        if node_type not in self._original_ids:
            path = ids_path(self.manifest.node_index(node_type))
            new_ids = np.asarray(self.array(path))
            self.check_values(path, new_ids, len(new_ids))
            originals = np.empty_like(new_ids)
            originals[new_ids] = np.arange(len(new_ids), dtype=new_ids.dtype)
            self._original_ids[node_type] = originals
        return self._original_ids[node_type]

    def links(self, split: str, edge_type: EdgeType) -> np.ndarray:
        """Held-out links: new ids of sources and destinations, `(2, num_links)`.

        Raises:
            SpecError: The split has no links of this type.
        """
        e = self.manifest.edge_index(edge_type)
        if not any(link.edge == e and link.split == split for link in self.manifest.links):
            there = [f"{link.split} {self.edge_types[link.edge]}" for link in self.manifest.links]
            raise SpecError(
                f"the graph has no {split} links of type {edge_type}",
                f"it has {', '.join(there) or 'no links at all'}",
            )
        return self.array(link_path(split, e))

    def check_values(self, path: str, ids: np.ndarray, end: int) -> None:
        """Raise DamagedGraphError if an id read from an array is not in `[0, end)`."""
        if ids.size and not 0 <= ids.min() <= ids.max() < end:
            raise DamagedGraphError(
                f"{self.folder} is damaged: {path} has ids that are not in [0, {end})"
            )

    def array(self, path: str) -> np.ndarray:
        """An array of the manifest, memory-mapped on first use.

        Raises:
            SpecError: It is not in the manifest, or its file does not match the manifest.
        """
        if path not in self._arrays:
            info = self.manifest.files.get(path)
            if info is None:
                raise SpecError(f"the manifest of {self.folder} lacks {path}", PARTITION_AGAIN)
            array = map_array(self.folder / path, info)
            if path.endswith(("/indptr.bin", "@starts.bin")):
                # Kernels do not check bounds: a wrong offset would read outside the array.
                check_file(self.folder, path, info)
            self._arrays[path] = array
        return self._arrays[path]


class Partition:
    """One graph partition: its nodes, their in-edges, and the columns of both.

    Attributes:
        graph: The partitioned graph.
        number: Number of this partition.
    """

    def __init__(self, graph: PartitionedGraph, number: int) -> None:
        self.graph = graph
        self.number = number

    def __repr__(self) -> str:
        return f"<part {self.number} of {self.graph!r}>"

    def start(self, node_type: str) -> int:
        """New id of the first node; local ids are relative to it."""
        return int(self.graph.offsets(node_type)[self.number])

    def num_nodes(self, node_type: str) -> int:
        """Number of nodes of one type that the partition owns."""
        return int(self.graph.offsets(node_type)[self.number + 1]) - self.start(node_type)

    def num_edges(self, edge_type: EdgeType) -> int:
        """Number of edges of one type that the partition stores."""
        manifest = self.graph.manifest
        offsets = manifest.edges[manifest.edge_index(edge_type)].offsets
        return offsets[self.number + 1] - offsets[self.number]

    def indptr(self, edge_type: EdgeType) -> np.ndarray:
        """First in-edge of each owned node, followed by the number of edges."""
        return self._edge_array(edge_type, "indptr")

    def indices(self, edge_type: EdgeType) -> np.ndarray:
        """New ids of the sources; for each destination by ascending original id."""
        return self._edge_array(edge_type, "indices")

    def edge_ids(self, edge_type: EdgeType) -> np.ndarray | None:
        """Original ids of the edges, if stored."""
        manifest = self.graph.manifest
        if not manifest.edges[manifest.edge_index(edge_type)].has_ids:
            return None
        return self._edge_array(edge_type, "ids")

    def halo(self, edge_type: EdgeType) -> np.ndarray:
        """New ids of the sources that other partitions own, ascending."""
        return self._edge_array(edge_type, "halo")

    def original_ids(self, node_type: str) -> np.ndarray:
        """Original ids of the owned nodes."""
        return self._node_array(node_type, "ids")

    def clusters(self, node_type: str) -> np.ndarray:
        """First local id of each second-level cluster, followed by the number of nodes."""
        return self._node_array(node_type, "clusters")

    def split(self, node_type: str, split: str) -> np.ndarray:
        """Local ids of the `train`, `val` or `test` nodes, ascending.

        Raises:
            SpecError: Nodes of this type have no such split.
        """
        manifest = self.graph.manifest
        splits = list(manifest.nodes[manifest.node_index(node_type)].splits)
        if split not in splits:
            raise SpecError(
                f"nodes of type {node_type!r} have no split {split!r}",
                f"they have {', '.join(splits) or 'none'}",
            )
        local = self._node_array(node_type, split)
        t = manifest.node_index(node_type)
        path = node_path(self.number, t, split)
        self.graph.check_values(path, local, self.num_nodes(node_type))
        return local

    def column(self, node_type: str, name: str) -> np.ndarray:
        """Values of the owned nodes; `bfloat16` as `uint16` bits, see `tensor`.

        Encoded columns are decoded into memory; others are not copied.
        """
        if self.column_info(node_type, name).encoding is None:
            return self._node_array(node_type, name)
        return self.rows(node_type, name, 0, self.num_nodes(node_type))

    def rows(self, node_type: str, name: str, start: int, stop: int) -> np.ndarray:
        """Some rows of `column`, by local ids."""
        info, stored = self.column_info(node_type, name), self.stored_rows(node_type, name)
        if info.codec is None:
            assert isinstance(stored, np.ndarray)
            return stored[start:stop]
        values = np.empty((stop - start, *info.shape), numpy_dtype(info.dtype))
        info.codec.decode(stored, np.arange(start, stop), np.arange(stop - start), values)
        return values

    def stored_rows(self, node_type: str, name: str) -> StoredRows:
        """Rows of a column as they are stored; raise SpecError if it does not exist."""
        codec = self.column_info(node_type, name).codec
        stored = self._node_array(node_type, name)
        if codec is None or not codec.is_sparse:
            return stored
        from headrace.graph.format.row_codec import SparseRows

        path = starts_path(self.number, self.graph.manifest.node_index(node_type), name)
        starts = self.graph.array(path)
        # Kernels do not check bounds.
        ends = (int(starts[0]), int(starts[-1])) if len(starts) else (0, 0)
        if len(starts) != self.num_nodes(node_type) + 1 or ends != (0, len(stored)):
            raise DamagedGraphError(f"{self.graph.folder} is damaged: {path} does not fit its rows")
        return SparseRows(stored, starts)

    @property
    def num_bytes(self) -> int:
        """Size of the partition's files."""
        files = self.graph.manifest.files.items()
        return sum(info.bytes for path, info in files if path.startswith(f"part-{self.number}/"))

    def edge_column(self, edge_type: EdgeType, name: str) -> np.ndarray:
        """Values of the stored edges, in the order of `indices`."""
        self.edge_column_info(edge_type, name)
        return self._edge_array(edge_type, name)

    def column_info(self, node_type: str, name: str) -> ColumnInfo:
        """Name, dtype and shape of a node column.

        Raises:
            SpecError: Nodes of this type have no such column.
        """
        manifest = self.graph.manifest
        columns = manifest.nodes[manifest.node_index(node_type)].columns
        return _find_column(f"nodes of type {node_type!r}", columns, name)

    def edge_column_info(self, edge_type: EdgeType, name: str) -> ColumnInfo:
        """Name, dtype and shape of an edge column.

        Raises:
            SpecError: Edges of this type have no such column.
        """
        manifest = self.graph.manifest
        columns = manifest.edges[manifest.edge_index(edge_type)].columns
        return _find_column(f"edges of type {edge_type}", columns, name)

    def tensor(self, node_type: str, name: str) -> torch.Tensor:
        """A column as a tensor of its own dtype; writing to one that is not encoded crashes."""
        dtype = self.column_info(node_type, name).dtype
        return as_tensor(self.column(node_type, name), dtype)

    def _node_array(self, node_type: str, name: str) -> np.ndarray:
        t = self.graph.manifest.node_index(node_type)
        return self.graph.array(node_path(self.number, t, name))

    def _edge_array(self, edge_type: EdgeType, name: str) -> np.ndarray:
        e = self.graph.manifest.edge_index(edge_type)
        return self.graph.array(edge_path(self.number, e, name))


def as_tensor(array: np.ndarray, dtype: str = "") -> torch.Tensor:
    """View an array as a tensor, without a copy.

    Mapped arrays are read-only, which torch cannot represent: writing to the tensor crashes.

    Args:
        array: Of any dtype that torch supports.
        dtype: `bfloat16` if the array holds its bits; otherwise the array's dtype is kept.

    Raises:
        MissingExtraError: torch is not installed.
    """
    try:
        import torch
        from torch.utils.dlpack import from_dlpack
    except ImportError:
        raise MissingExtraError("torch is not installed", "pip install 'headrace[train]'") from None
    # Unlike `from_numpy`, this does not warn about read-only arrays.
    tensor: torch.Tensor = from_dlpack(array)
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def _find_column(what: str, columns: tuple[ColumnInfo, ...], name: str) -> ColumnInfo:
    for info in columns:
        if info.name == name:
            return info
    known = ", ".join(info.name for info in columns)
    raise SpecError(f"{what} have no column {name!r}", f"they have {known or 'none'}")


def _check_ids(node_type: str, ids: np.ndarray, num_nodes: int) -> None:
    if np.size(ids) > 0 and not 0 <= np.min(ids) <= np.max(ids) < num_nodes:
        raise SpecError(
            f"ids {np.min(ids)} to {np.max(ids)} of {node_type!r} are out of range, there are "
            f"{num_nodes} nodes",
            f"use 0 to {num_nodes - 1}",
        )
