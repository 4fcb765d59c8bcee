"""Parts contain what their source does, in the order that the format promises."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.graph.build import edge_writer, layout
from headrace.graph.format import array_files
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph
from headrace.graph.kernels.writing import round_to_bfloat16
from headrace.graph.schema import Column, GraphSource
from tests.support.reassemble import reassemble
from tests.unit.graph.small_graphs import (
    NODE_TO_NODE,
    endpoints,
    heterogeneous,
    homogeneous,
    write,
)


def assert_same(source: GraphSource, graph: PartitionedGraph) -> None:
    """Compare everything but edges without ids, whose order is not kept."""
    again = reassemble(graph)
    assert again.name == source.name
    for table, other in zip(source.nodes, again.nodes, strict=True):
        assert (table.name, table.num_nodes) == (other.name, other.num_nodes)
        assert_same_columns(table.columns, other.columns, table.num_nodes)
        assert table.splits.keys() == other.splits.keys()
        for split, ids in table.splits.items():
            np.testing.assert_array_equal(ids, other.splits[split])
        everyone = np.arange(table.num_nodes)
        new_ids = graph.to_new(table.name, everyone)
        np.testing.assert_array_equal(np.sort(new_ids), everyone)
        np.testing.assert_array_equal(graph.to_original(table.name, new_ids), everyone)
    for edges, more in zip(source.edges, again.edges, strict=True):
        assert (edges.edge_type, edges.keep_ids) == (more.edge_type, more.keep_ids)
        pairs, others = np.stack(endpoints(edges)), np.stack(endpoints(more))
        if not edges.keep_ids:
            pairs, others = (each[:, np.lexsort(each)] for each in (pairs, others))
        np.testing.assert_array_equal(pairs, others)
        assert_same_columns(edges.columns, more.columns, edges.num_edges)
    for links, same in zip(source.links, again.links, strict=True):
        assert (links.split, links.edge_type) == (same.split, same.edge_type)
        np.testing.assert_array_equal(links.src, same.src)
        np.testing.assert_array_equal(links.dst, same.dst)


def assert_same_columns(
    columns: tuple[Column, ...], others: tuple[Column, ...], num_rows: int
) -> None:
    for column, other in zip(columns, others, strict=True):
        assert (column.name, column.dtype, column.shape) == (other.name, other.dtype, other.shape)
        np.testing.assert_array_equal(column.read(0, num_rows), other.read(0, num_rows))


@pytest.mark.parametrize("num_clusters", [None, 1, 4])
@pytest.mark.parametrize("num_parts", [1, 3, 7])
@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_round_trip(
    make: Callable[[], GraphSource], num_parts: int, num_clusters: int | None, tmp_path: Path
) -> None:
    write(make(), tmp_path, num_parts, num_clusters)
    assert_same(make(), open_graph(tmp_path))


def test_round_trip_without_edge_ids(tmp_path: Path) -> None:
    source = homogeneous(keep_ids=False)
    write(source, tmp_path)
    assert_same(source, open_graph(tmp_path))


@pytest.mark.parametrize("num_edges", [1, 7])
def test_small_chunks_change_nothing(
    num_edges: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = heterogeneous()
    whole = write(source, tmp_path / "whole")
    monkeypatch.setattr(edge_writer, "_CHUNK_EDGES", num_edges)
    monkeypatch.setattr(edge_writer, "_CHUNK_NODES", 3)
    monkeypatch.setattr(layout, "_CHUNK_ROWS", 4)
    assert write(source, tmp_path / "chunks").files == whole.files


def test_inside_a_part_nodes_are_by_cluster_then_original_id(tmp_path: Path) -> None:
    write(homogeneous(), tmp_path, num_clusters=3)
    graph = open_graph(tmp_path)
    assert graph.manifest.num_clusters == 3
    for number in range(graph.num_parts):
        part = graph.part(number)
        bounds = part.clusters("node")
        assert (bounds[0], bounds[-1]) == (0, part.num_nodes("node"))
        for low, high in pairwise(bounds.tolist()):
            assert np.all(np.diff(part.original_ids("node")[low:high]) > 0)


def test_lists_are_by_original_source_and_edge(tmp_path: Path) -> None:
    write(homogeneous(num_nodes=12, num_edges=300), tmp_path)
    graph = open_graph(tmp_path)
    for number in range(graph.num_parts):
        part = graph.part(number)
        src = graph.to_original("node", part.indices(NODE_TO_NODE)).astype(np.int64)
        ids = part.edge_ids(NODE_TO_NODE)
        assert ids is not None
        indptr = part.indptr(NODE_TO_NODE)
        for low, high in pairwise(indptr.tolist()):
            pairs = list(zip(src[low:high].tolist(), ids[low:high].tolist(), strict=True))
            assert pairs == sorted(pairs)


@pytest.mark.parametrize("make", [homogeneous, heterogeneous])
def test_halo_is_what_other_parts_own(make: Callable[[], GraphSource], tmp_path: Path) -> None:
    write(make(), tmp_path)
    graph = open_graph(tmp_path)
    for edge_type in graph.edge_types:
        for number in range(graph.num_parts):
            part = graph.part(number)
            sources = np.unique(part.indices(edge_type))
            foreign = sources[graph.owner(edge_type[0], sources) != number]
            np.testing.assert_array_equal(part.halo(edge_type), foreign)


def test_a_part_may_own_nothing_of_a_type(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path, num_parts=25)
    graph = open_graph(tmp_path)
    empty = [p for p in range(25) if graph.part(p).num_nodes("venue") == 0]
    assert empty
    part = graph.part(empty[0])
    np.testing.assert_array_equal(part.indptr(("paper", "in", "venue")), [0])
    assert part.indices(("paper", "in", "venue")).shape == (0,)
    assert part.edge_column(("paper", "in", "venue"), "time").shape == (0, 2)


def plain_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round by comparing with both neighbours."""
    out = []
    for bits in values.astype(np.float32).view(np.uint32).tolist():
        low, rest = bits >> 16, bits & 0xFFFF
        out.append(low + (rest > 0x8000 or (rest == 0x8000 and low % 2 == 1)))
    return np.array(out, np.uint16)


def test_bfloat16_rounds_to_nearest_even() -> None:
    import torch

    rng = np.random.default_rng(0)
    special = np.array([0, -0.0, 1, 1.00390625, 1.01171875, 3e38, -3.4e38, np.inf, -np.inf])
    values = np.concatenate([special, rng.standard_normal(5000) * 10.0 ** rng.integers(-40, 38)])
    values = values.astype(np.float32)
    out = np.empty(len(values), np.uint16)
    round_to_bfloat16(values.view(np.uint32), out)
    np.testing.assert_array_equal(out, plain_bfloat16(values))
    as_torch = torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy()
    np.testing.assert_array_equal(out.view(np.int16), as_torch)
    nan = np.array([0x7FFFFFFF, 0xFF800001], np.uint32)
    round_to_bfloat16(nan, out[:2])
    assert np.isnan((out[:2].astype(np.uint32) << 16).view(np.float32)).all()


@pytest.mark.parametrize(("dtype", "error"), [("float16", 1e-3), ("bfloat16", 8e-3)])
def test_narrow_features(dtype: str, error: float, tmp_path: Path) -> None:
    import torch

    source = homogeneous()
    write(source, tmp_path, features=dtype)
    part = open_graph(tmp_path).part(1)
    stored = part.tensor("node", "x")
    assert stored.dtype == getattr(torch, dtype)
    exact = source.nodes[0].columns[0].read(0, 30)[part.original_ids("node")]
    np.testing.assert_allclose(stored.to(torch.float32).numpy(), exact, rtol=error, atol=1e-6)
    assert part.column("node", "y").dtype == np.int64


def test_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = heterogeneous()
    whole = write(source, tmp_path / "whole")
    reads: list[str] = []

    def counted(column: Column) -> Column:
        def read(start: int, stop: int) -> np.ndarray:
            reads.append(column.name)
            return column.read(start, stop)

        return replace(column, read=read)

    counting = replace(
        source,
        nodes=tuple(
            replace(t, columns=tuple(counted(column) for column in t.columns)) for t in source.nodes
        ),
    )
    write_edges = edge_writer.EdgeWriter.write

    def killed(self: Any, watcher: Any) -> Any:
        if self._e == 1:
            raise KeyboardInterrupt
        return write_edges(self, watcher)

    monkeypatch.setattr(edge_writer.EdgeWriter, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        write(counting, tmp_path / "killed")
    assert not (tmp_path / "killed" / "manifest.json").exists()
    monkeypatch.undo()
    damaged = tmp_path / "killed" / "part-1" / "node-1" / "is_dr.bin"
    damaged.write_bytes(b"\0" * damaged.stat().st_size)
    assert write(counting, tmp_path / "killed") == whole
    assert reads == ["x", "is_dr", "is_dr"]
    found = {os.path.relpath(path, tmp_path / "killed") for path in files_in(tmp_path / "killed")}
    assert found == {*whole.files, "manifest.json"}


def test_other_parts_start_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_writer.EdgeWriter, "write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write(homogeneous(), tmp_path / "a", num_parts=5)
    monkeypatch.undo()
    manifest = write(homogeneous(), tmp_path / "a", num_parts=2)
    assert manifest == write(homogeneous(), tmp_path / "b", num_parts=2)
    assert len(files_in(tmp_path / "a")) == len(manifest.files) + 1


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_stretches_go_to_their_places(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bounds = np.array([0, 4, 4, 11, 20])
    split = array_files.SplitArray(tmp_path, [f"{p}.bin" for p in range(4)], bounds, "int64", (2,))
    values = rng.integers(0, 99, (20, 2))
    starts, lengths = np.array([1, 3, 5, 9, 9]), np.array([2, 0, 4, 0, 11])
    split.put(np.array([0, 3]), np.array([1, 2]), values[[0, 3, 4]])
    split.put(starts, lengths, np.concatenate([values[1:3], values[5:9], values[9:20]]))
    files = split.seal()
    parts = [np.fromfile(tmp_path / path, np.int64).reshape(-1, 2) for path in files]
    np.testing.assert_array_equal(np.concatenate(parts), values)
    assert [info.shape for info in files.values()] == [(4, 2), (0, 2), (7, 2), (9, 2)]
