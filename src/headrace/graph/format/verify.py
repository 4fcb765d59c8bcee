"""Full verification of a partitioned graph: files, checksums and consistency of the arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.core.errors import DamagedGraphError
from headrace.graph.format.array_files import damage_of
from headrace.graph.format.manifest import (
    MANIFEST,
    Manifest,
    edge_path,
    ids_path,
    link_path,
    node_path,
    starts_path,
)
from headrace.graph.format.partitioned_graph import Partition, PartitionedGraph, open_graph
from headrace.graph.kernels.writing import mark
from headrace.graph.schema import Nobody, Watcher

_CHUNK = 1 << 22


def verify(path: str | os.PathLike[str], watcher: Watcher | None = None) -> list[str]:
    """Read all files and list all problems.

    The contents of arrays are checked only if all files are intact.

    Args:
        path: Directory of the graph.
        watcher: Receives the number of bytes read.

    Returns:
        One sentence per problem; empty if the graph is intact.

    Raises:
        SpecError: The directory is not a partitioned graph, or its manifest is invalid.
    """
    graph, watcher = open_graph(path), watcher or Nobody()
    num_bytes = sum(info.bytes for info in graph.manifest.files.values())
    watcher.begin("checking files", num_bytes)
    problems = [*_check_table(graph.manifest), *_check_strays(graph)]
    for name, info in graph.manifest.files.items():
        if problem := damage_of(graph.folder / name, name, info):
            problems.append(problem)
        watcher.advance(info.bytes)
    if problems:
        return problems
    watcher.begin("checking ids", graph.num_parts)
    for number in range(graph.num_parts):
        problems += [*_check_nodes(graph.part(number)), *_check_rows(graph.part(number))]
        watcher.advance(1)
    if problems:
        # Edges can be checked only if ids are correct.
        return problems
    watcher.begin("checking edges", graph.num_parts)
    for number in range(graph.num_parts):
        problems += _check_edges(graph.part(number))
        watcher.advance(1)
    return problems + list(_check_links(graph))


def _expected(manifest: Manifest) -> Iterator[tuple[str, tuple[int, ...] | None, str]]:
    """All expected files with shape (None if unknown) and dtype (empty if several are valid)."""
    for t, node in enumerate(manifest.nodes):
        yield ids_path(t), (node.num_nodes,), ""
        for p in range(manifest.num_parts):
            num = node.offsets[p + 1] - node.offsets[p]
            yield node_path(p, t, "ids"), (num,), ""
            yield node_path(p, t, "clusters"), (manifest.num_clusters + 1,), "int64"
            for split, counts in node.splits.items():
                yield node_path(p, t, split), (counts[p],), "int64"
            for column in node.columns:
                path, codec = node_path(p, t, column.name), column.codec
                if codec is None:
                    yield path, (num, *column.shape), column.dtype
                elif codec.is_sparse:
                    yield path, None, "uint16"
                    yield starts_path(p, t, column.name), (num + 1,), "int64"
                else:
                    yield path, (num, codec.stored_width), "uint8"
    for e, edge in enumerate(manifest.edges):
        dst = manifest.nodes[manifest.node_index(edge.dst)]
        for p in range(manifest.num_parts):
            num = edge.offsets[p + 1] - edge.offsets[p]
            yield edge_path(p, e, "indptr"), (dst.offsets[p + 1] - dst.offsets[p] + 1,), "int64"
            yield edge_path(p, e, "indices"), (num,), ""
            yield edge_path(p, e, "halo"), None, ""
            if edge.has_ids:
                yield edge_path(p, e, "ids"), (num,), ""
            for column in edge.columns:
                yield edge_path(p, e, column.name), (num, *column.shape), column.dtype
    for link in manifest.links:
        yield link_path(link.split, link.edge), (2, link.num_links), "int64"


def _check_table(manifest: Manifest) -> Iterator[str]:
    expected = {path: (shape, dtype) for path, shape, dtype in _expected(manifest)}
    for path in sorted(expected.keys() - manifest.files.keys()):
        yield f"the manifest lacks {path}"
    for path in sorted(manifest.files.keys() - expected.keys()):
        yield f"the manifest lists {path}, which is not a file of the format"
    for path in sorted(expected.keys() & manifest.files.keys()):
        info, (shape, dtype) = manifest.files[path], expected[path]
        if shape is not None and info.shape != shape:
            yield f"{path} has the shape {info.shape} instead of {shape}"
        if dtype and info.dtype != dtype:
            yield f"{path} is {info.dtype} instead of {dtype}"
        if not dtype and info.dtype not in ("int32", "int64", "uint32"):
            yield f"{path} is {info.dtype}, which is not a dtype of ids"


def _check_strays(graph: PartitionedGraph) -> Iterator[str]:
    for folder, _, names in os.walk(graph.folder):
        for name in sorted(names):
            path = (Path(folder) / name).relative_to(graph.folder).as_posix()
            if path != MANIFEST and path not in graph.manifest.files:
                yield f"{path} does not belong here"


def _check_rows(part: Partition) -> Iterator[str]:
    """Decode the sparse rows of a partition."""
    for t, node in enumerate(part.graph.manifest.nodes):
        for column in node.columns:
            if column.codec is None or not column.codec.is_sparse:
                continue
            num_rows, step = part.num_nodes(node.name), max(1, _CHUNK // column.value_bytes)
            try:
                for start in range(0, num_rows, step):
                    part.rows(node.name, column.name, start, min(start + step, num_rows))
            except DamagedGraphError as error:
                yield f"{node_path(part.number, t, column.name)}: {error.problem}"


def _check_nodes(part: Partition) -> Iterator[str]:
    manifest, graph = part.graph.manifest, part.graph
    for t, node in enumerate(manifest.nodes):
        new_of, ids = graph.array(ids_path(t)), part.original_ids(node.name)
        # If original ids map back to their new ids, both are permutations.
        for first in range(0, len(ids), _CHUNK):
            some = ids[first : first + _CHUNK]
            start = part.start(node.name) + first
            in_range = 0 <= some.min() <= some.max() < node.num_nodes
            if not in_range or np.any(new_of[some] != np.arange(start, start + len(some))):
                yield f"{node_path(part.number, t, 'ids')} does not agree with {ids_path(t)}"
                break
        bounds = part.clusters(node.name)
        if bounds[0] != 0 or bounds[-1] != len(ids) or np.any(np.diff(bounds) < 0):
            yield f"{node_path(part.number, t, 'clusters')} does not ascend from 0 to {len(ids)}"
        for split in node.splits:
            local = graph.array(node_path(part.number, t, split))
            if not _rises(local) or not _inside(local, 0, len(ids)):
                path = node_path(part.number, t, split)
                yield f"{path} does not ascend within 0 to {len(ids) - 1}"


def _check_edges(part: Partition) -> Iterator[str]:
    manifest = part.graph.manifest
    for e, edge in enumerate(manifest.edges):
        indptr, indices = part.indptr(edge.edge_type), part.indices(edge.edge_type)
        if indptr[0] != 0 or indptr[-1] != len(indices) or _falls(indptr):
            path = edge_path(part.number, e, "indptr")
            yield f"{path} does not ascend from 0 to {len(indices)}"
        num_src = part.graph.num_nodes_of(edge.src)
        if not _inside(indices, 0, num_src):
            path = edge_path(part.number, e, "indices")
            yield f"{path} has node ids outside 0 to {num_src - 1}"
            continue
        is_source = np.zeros(num_src, np.bool_)
        mark(indices, is_source)
        start = part.start(edge.src)
        is_source[start : start + part.num_nodes(edge.src)] = False
        if not np.array_equal(part.halo(edge.edge_type), np.flatnonzero(is_source)):
            path = edge_path(part.number, e, "halo")
            yield f"{path} does not list the sources that other partitions own"
        edge_ids = part.edge_ids(edge.edge_type)
        if edge_ids is not None and not _inside(edge_ids, 0, edge.num_edges):
            path = edge_path(part.number, e, "ids")
            yield f"{path} has edge ids outside 0 to {edge.num_edges - 1}"


def _check_links(graph: PartitionedGraph) -> Iterator[str]:
    for link in graph.manifest.links:
        edge = graph.manifest.edges[link.edge]
        links = graph.links(link.split, edge.edge_type)
        for ids, name in ((links[0], edge.src), (links[1], edge.dst)):
            if not _inside(ids, 0, graph.num_nodes_of(name)):
                yield f"{link_path(link.split, link.edge)} has {name} ids that do not exist"


def _rises(ids: np.ndarray) -> bool:
    return bool(np.all(np.diff(ids) > 0))


def _falls(indptr: np.ndarray) -> bool:
    """Whether an array descends anywhere, checked in chunks."""
    pieces = range(0, len(indptr) - 1, _CHUNK)
    return any(np.any(np.diff(indptr[i : i + _CHUNK + 1]) < 0) for i in pieces)


def _inside(ids: np.ndarray, low: int, high: int) -> bool:
    return len(ids) == 0 or bool(low <= ids.min() and ids.max() < high)
