"""External construction of CSC arrays, for graphs larger than memory.

Lists are filled in memory one window of destinations at a time and then written in order, because
random writes to a mapped file beyond the kernel's dirty-page limit are written back repeatedly.
Memory is one window, one or two numbers per destination, and a chunk of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.adjacency import Adjacency, Csc
from headrace.graph.kernels import csc as kernels
from headrace.graph.schema import EdgeTable, GraphSource
from headrace.linux.atomic_write import atomic_write

WINDOW_BYTES = 4 << 30
"""Memory of one window; every window reads the whole table again."""

_CSC = "csc.json"
_ADJACENCY = "adjacency.json"


def build_csc(
    table: EdgeTable,
    num_src: int,
    num_dst: int,
    folder: Path,
    window_bytes: int = WINDOW_BYTES,
) -> Csc:
    """Sort the edges of one type by destination, then source, then row.

    The table is read once for counting and once per window. Raises SpecError if an edge has an end
    that does not exist.

    Args:
        table: The edges.
        num_src: Number of nodes of the source type.
        num_dst: Number of nodes of the destination type.
        folder: Output folder; created or overwritten.
        window_bytes: Memory of one window.
    """
    _begin(folder, _CSC)
    indptr = _prefix_sums(_in_degrees(table, num_src, num_dst))
    indptr.tofile(folder / "indptr.bin")
    index_dtype = id_dtype(num_src)
    ids_dtype = np.dtype(np.uint32 if table.num_edges <= 2**32 else np.int64)
    edge_bytes = index_dtype.itemsize + (ids_dtype.itemsize if table.keep_ids else 0)

    cursor = indptr[:-1].copy()
    with (
        open(folder / "indices.bin", "wb") as indices_file,
        open(folder / "ids.bin", "wb") as ids_file,
    ):
        for start, stop in _windows(indptr, window_bytes // edge_bytes):
            base, size = indptr[start], indptr[stop] - indptr[start]
            indices = np.empty(size, index_dtype)
            ids = np.empty(size if table.keep_ids else 0, ids_dtype)
            row = 0
            for src, dst in table.chunks():
                kernels.scatter_edges(src, dst, row, start, stop, base, cursor, indices, ids)
                row += len(dst)
            lists = indptr[start : stop + 1]
            if not np.array_equal(cursor[start:stop], lists[1:]):
                raise SpecError(
                    f"the edges of {_name(table)} changed between two reads",
                    "do not modify the files while they are read; try again",
                )
            if table.keep_ids:
                kernels.sort_lists_with_ids(lists, base, indices, ids)
            else:
                kernels.sort_lists(lists, base, indices)
            indices.tofile(indices_file)
            ids.tofile(ids_file)
    _end(
        folder,
        _CSC,
        indptr=_array(indptr.dtype, num_dst + 1),
        indices=_array(index_dtype, table.num_edges),
        ids=_array(ids_dtype, table.num_edges) if table.keep_ids else None,
    )
    return open_csc(folder)


def open_csc(folder: Path) -> Csc:
    """Map the output of `build_csc`; raises SpecError if it is missing or incomplete."""
    indptr, indices, ids = _open(folder, _CSC, ("indptr", "indices", "ids"))
    assert indptr is not None
    assert indices is not None
    return Csc(indptr, indices, ids)


def build_adjacency(
    source: GraphSource,
    cscs: Sequence[Csc],
    folder: Path,
    window_bytes: int = WINDOW_BYTES,
) -> Adjacency:
    """Combine all types into one undirected graph; drop loops, merge parallel edges into weights.

    A homogeneous graph that already has this form is not copied.

    Args:
        source: The graph, for its types.
        cscs: One CSC for each of `source.edges`.
        folder: Output folder; unused if the graph is not copied.
        window_bytes: Memory of one window.
    """
    if len(source.nodes) == 1 and len(cscs) == 1:
        only = cscs[0]
        if kernels.is_simple_undirected(only.indptr, only.indices):
            return Adjacency(only.indptr, only.indices)

    _begin(folder, _ADJACENCY)
    offsets = source.node_offsets()
    typed = [
        (
            csc,
            offsets[source.type_index(table.edge_type[0])],
            offsets[source.type_index(table.edge_type[2])],
        )
        for table, csc in zip(source.edges, cscs, strict=True)
    ]
    degrees = np.zeros(source.num_nodes, np.int64)
    for csc, src_offset, dst_offset in typed:
        kernels.count_pairs(csc.indptr, csc.indices, src_offset, dst_offset, degrees)
    raw = _prefix_sums(degrees)

    index_dtype = id_dtype(source.num_nodes)
    weight_dtype = np.dtype(np.int32)
    pair_bytes = index_dtype.itemsize + weight_dtype.itemsize
    cursor = raw[:-1].copy()
    num_arcs, least, most = 0, 2**62, 0
    with (
        open(folder / "indices.bin", "wb") as indices_file,
        open(folder / "weights.bin", "wb") as weights_file,
    ):
        for start, stop in _windows(raw, window_bytes // pair_bytes):
            base, size = raw[start], raw[stop] - raw[start]
            indices = np.empty(size, index_dtype)
            for csc, src_offset, dst_offset in typed:
                kernels.scatter_pairs(
                    csc.indptr,
                    csc.indices,
                    src_offset,
                    dst_offset,
                    start,
                    stop,
                    base,
                    cursor,
                    indices,
                )
            lists = raw[start : stop + 1]
            kernels.sort_lists(lists, base, indices)
            weights = np.empty(size, weight_dtype)
            left, window_least, window_most = kernels.merge_lists(
                lists, base, indices, weights, degrees[start:stop]
            )
            indices[:left].tofile(indices_file)
            weights[:left].tofile(weights_file)
            num_arcs += left
            least, most = min(least, window_least), max(most, window_most)
    indptr = _prefix_sums(degrees)
    indptr.tofile(folder / "indptr.bin")
    # Equal weights carry no information.
    _end(
        folder,
        _ADJACENCY,
        indptr=_array(indptr.dtype, len(indptr)),
        indices=_array(index_dtype, num_arcs),
        weights=_array(weight_dtype, num_arcs) if least < most else None,
    )
    return open_adjacency(folder)


def open_adjacency(folder: Path) -> Adjacency:
    """Map the output of `build_adjacency`; raises SpecError if it is missing or incomplete."""
    indptr, indices, weights = _open(folder, _ADJACENCY, ("indptr", "indices", "weights"))
    assert indptr is not None
    assert indices is not None
    return Adjacency(indptr, indices, weights)


def id_dtype(num_nodes: int) -> np.dtype:
    """The smaller integer dtype that holds all ids below `num_nodes`."""
    return np.dtype(np.int32 if num_nodes < 2**31 else np.int64)


def _in_degrees(table: EdgeTable, num_src: int, num_dst: int) -> np.ndarray:
    """Number of edges by destination; checks both ends of every edge."""
    name = _name(table)
    degrees = np.zeros(num_dst, np.int64)
    num_rows = 0
    for src, dst in table.chunks():
        bad = kernels.count_edges(src, dst, num_src, num_dst, degrees)
        if bad >= 0:
            source_is_bad = not 0 <= src[bad] < num_src
            end, num = ("source", num_src) if source_is_bad else ("destination", num_dst)
            node = src[bad] if source_is_bad else dst[bad]
            node_type = table.edge_type[0 if source_is_bad else 2]
            raise SpecError(
                f"dangling edge: row {num_rows + bad} of {name} has {end} {node}, but there are "
                f"{num} nodes of type {node_type}",
                f"ids of {node_type} are row numbers below {num}; remove the edge or add the node",
            )
        num_rows += len(dst)
    if num_rows != table.num_edges:
        raise SpecError(
            f"{name} declares {table.num_edges} edges, but {num_rows} were read",
            "do not modify the files while they are read; try again",
        )
    return degrees


def _name(table: EdgeTable) -> str:
    return "-".join(table.edge_type)


def _prefix_sums(degrees: np.ndarray) -> np.ndarray:
    indptr = np.zeros(len(degrees) + 1, np.int64)
    np.cumsum(degrees, out=indptr[1:])
    return indptr


def _windows(indptr: np.ndarray, size: int) -> Iterator[tuple[int, int]]:
    """Split nodes into ranges whose lists have at most `size` entries, or into single nodes."""
    start, num_nodes = 0, len(indptr) - 1
    while start < num_nodes and indptr[start] < indptr[-1]:
        stop = int(np.searchsorted(indptr, indptr[start] + size, side="right")) - 1
        stop = min(max(stop, start + 1), num_nodes)
        yield start, stop
        start = stop


def _array(dtype: np.dtype, length: int) -> dict[str, str | int]:
    return {"dtype": dtype.name, "length": int(length)}


def _begin(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).unlink(missing_ok=True)


def _end(folder: Path, name: str, **arrays: dict[str, str | int] | None) -> None:
    """Write the index of arrays last and atomically: if it exists, the arrays are complete."""
    for key, array in arrays.items():
        if array is None:
            (folder / f"{key}.bin").unlink(missing_ok=True)
    atomic_write(folder / name, json.dumps(arrays))


def _open(folder: Path, name: str, keys: Sequence[str]) -> list[np.ndarray | None]:
    path = folder / name
    if not path.is_file():
        raise SpecError(f"{folder} has no {name}", "build it again")
    arrays = json.loads(path.read_text())
    return [_map(folder / f"{key}.bin", arrays[key]) for key in keys]


def _map(path: Path, array: dict[str, str | int] | None) -> np.ndarray | None:
    if array is None:
        return None
    dtype, length = np.dtype(str(array["dtype"])), int(array["length"])
    if length == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype)
    # As a plain array, because slicing a memmap creates memmaps, which is slow.
    return np.asarray(np.memmap(path, dtype, "r", shape=(length,)))
