"""Whatever the graph and its parts: nothing is lost, and seeds are shared fairly."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.format.verify import verify
from tests.unit.graph.build.test_node_writer import assert_same
from tests.unit.graph.small_graphs import heterogeneous, homogeneous, write

seeds = st.integers(0, 2**32 - 1)


@given(
    num_nodes=st.integers(1, 40),
    num_edges=st.integers(0, 150),
    part_share=st.floats(0, 1),
    num_clusters=st.one_of(st.none(), st.integers(1, 5)),
    keep_ids=st.booleans(),
    seed=seeds,
)
@settings(max_examples=40)
def test_homogeneous_graphs_come_back(
    num_nodes: int,
    num_edges: int,
    part_share: float,
    num_clusters: int | None,
    keep_ids: bool,
    seed: int,
) -> None:
    source = homogeneous(num_nodes, num_edges, seed, keep_ids)
    num_parts = max(1, int(part_share * min(num_nodes, 12)))
    with tempfile.TemporaryDirectory() as folder:
        write(source, Path(folder), num_parts, num_clusters, seed)
        assert_same(source, open_graph(folder))
        assert verify(folder) == []


@pytest.mark.slow
@given(num_papers=st.integers(1, 30), num_parts=st.integers(1, 6), seed=seeds)
@settings(max_examples=20)
def test_heterogeneous_graphs_come_back(num_papers: int, num_parts: int, seed: int) -> None:
    source = heterogeneous(seed, num_papers)
    with tempfile.TemporaryDirectory() as folder:
        write(source, Path(folder), num_parts, 2, seed)
        assert_same(source, open_graph(folder))
        assert verify(folder) == []
