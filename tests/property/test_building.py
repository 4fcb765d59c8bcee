"""Lists built out of core equal those of a plain sort, whatever the types, chunks and windows."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.graph.adjacency import Csc
from headrace.graph.build.csc import build_adjacency, build_csc
from headrace.graph.kernels.csc import is_simple_undirected
from headrace.graph.schema import EdgeTable, GraphSource, NodeTable


@st.composite
def graphs(draw: st.DrawFn) -> GraphSource:
    """One to three node types, one to four edge types, sometimes with long lists."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    names = "abc"[: draw(st.integers(1, 3))]
    sizes = {name: draw(st.integers(1, 12)) for name in names}
    tables = []
    for number in range(draw(st.integers(1, 4))):
        src, dst = draw(st.sampled_from(names)), draw(st.sampled_from(names))
        num_edges = draw(st.sampled_from([0, 1, 7, 40, 400]))
        ends = np.stack(
            [rng.integers(sizes[src], size=num_edges), rng.integers(sizes[dst], size=num_edges)]
        )
        if draw(st.booleans()) and src == dst:
            ends = np.concatenate([ends, ends[::-1]], axis=1)
        tables.append(
            table_of((src, f"r{number}", dst), ends, draw(st.booleans()), draw(st.integers(1, 99)))
        )
    return GraphSource("test", tuple(NodeTable(name, sizes[name]) for name in names), tuple(tables))


def table_of(
    edge_type: tuple[str, str, str], ends: np.ndarray, keep_ids: bool, chunk: int
) -> EdgeTable:
    def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, ends.shape[1], chunk):
            yield ends[0, start : start + chunk], ends[1, start : start + chunk]

    return EdgeTable(edge_type, ends.shape[1], chunks, keep_ids=keep_ids)


def all_rows(table: EdgeTable) -> tuple[np.ndarray, np.ndarray]:
    chunks = list(table.chunks())
    if not chunks:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([c[0] for c in chunks]), np.concatenate([c[1] for c in chunks])


def build_all(source: GraphSource, folder: Path, window_bytes: int) -> list[Csc]:
    sizes = {table.name: table.num_nodes for table in source.nodes}
    return [
        build_csc(
            table,
            sizes[table.edge_type[0]],
            sizes[table.edge_type[2]],
            folder / f"edge-{number}",
            window_bytes,
        )
        for number, table in enumerate(source.edges)
    ]


sources_and_windows = given(graphs(), st.sampled_from([8, 200, 1 << 20]))


@sources_and_windows
@settings(max_examples=5)
def test_csc_equals_a_plain_sort_on_a_sample(source: GraphSource, window_bytes: int) -> None:
    check_csc(source, window_bytes)


@pytest.mark.campaign
@sources_and_windows
@settings(max_examples=60)
def test_csc_equals_a_plain_sort_on_many(source: GraphSource, window_bytes: int) -> None:
    check_csc(source, window_bytes)


def check_csc(source: GraphSource, window_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for table, csc in zip(
            source.edges, build_all(source, Path(folder), window_bytes), strict=True
        ):
            src, dst = all_rows(table)
            order = np.lexsort((np.arange(len(src)), src, dst))
            assert np.array_equal(csc.indices, src[order])
            assert np.array_equal(
                np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr)), dst[order]
            )
            if table.keep_ids:
                assert csc.edge_ids is not None
                assert np.array_equal(csc.edge_ids, order)


@sources_and_windows
@settings(max_examples=5)
def test_adjacency_equals_counted_pairs_on_a_sample(source: GraphSource, window_bytes: int) -> None:
    check_adjacency(source, window_bytes)


@pytest.mark.campaign
@sources_and_windows
@settings(max_examples=60)
def test_adjacency_equals_counted_pairs_on_many(source: GraphSource, window_bytes: int) -> None:
    check_adjacency(source, window_bytes)


def check_adjacency(source: GraphSource, window_bytes: int) -> None:
    offsets = source.node_offsets()
    pairs: Counter[tuple[int, int]] = Counter()
    for table in source.edges:
        src, dst = all_rows(table)
        for u, v in zip(
            src + offsets[source.type_index(table.edge_type[0])],
            dst + offsets[source.type_index(table.edge_type[2])],
            strict=True,
        ):
            if u != v:
                pairs[int(u), int(v)] += 1
                pairs[int(v), int(u)] += 1
    with tempfile.TemporaryDirectory() as folder:
        cscs = build_all(source, Path(folder), window_bytes)
        adjacency = build_adjacency(source, cscs, Path(folder) / "all", window_bytes)
        nodes = np.repeat(np.arange(adjacency.num_nodes), np.diff(adjacency.indptr))
        found = list(zip(nodes.tolist(), adjacency.indices.tolist(), strict=True))
        assert found == sorted(pairs)
        if adjacency.weights is None:
            assert len(set(pairs.values())) <= 1
        else:
            assert adjacency.weights.tolist() == [pairs[pair] for pair in found]


@given(st.sets(st.tuples(st.integers(0, 6), st.integers(0, 6))), st.booleans())
def test_simple_undirected_means_what_it_says(pairs: set[tuple[int, int]], close: bool) -> None:
    if close:
        pairs = {(u, v) for u, v in pairs if u != v} | {(v, u) for u, v in pairs if u != v}
    by_destination = sorted((v, u) for u, v in pairs)
    indptr = np.searchsorted([v for v, _ in by_destination], np.arange(8)).astype(np.int64)
    indices = np.array([u for _, u in by_destination], np.int32)
    expected = all(u != v and (v, u) in pairs for u, v in pairs)
    assert is_simple_undirected(indptr, indices) == expected
