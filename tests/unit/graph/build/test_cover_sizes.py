"""Rows of an exchange with partial sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch_geometric")

from headrace.graph.build.cover_sizes import cover_sizes
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.schema import GraphSource, NodeTable
from headrace.training.full_graph.part import halo_sizes
from tests.unit.graph.small_graphs import (
    NODE_TO_NODE,
    edge_table,
    homogeneous,
    write,
)


def test_covers_are_at_most_the_halo(tmp_path: Path) -> None:
    write(homogeneous(60, 400), tmp_path / "graph", 3)
    graph = open_graph(tmp_path / "graph")
    found = cover_sizes(graph, [0, 1, 2], NODE_TO_NODE)
    assert (found.halo == halo_sizes(graph, [0, 1, 2])[NODE_TO_NODE]).all()
    assert (found.total <= found.halo).all()
    assert found.total.sum() < found.halo.sum()


def test_a_hub_gets_one_sum_from_each_trainer(tmp_path: Path) -> None:
    sources = np.arange(30)
    edges = edge_table(NODE_TO_NODE, sources, np.zeros(30, int))
    write(GraphSource("star", (NodeTable("node", 30),), (edges,)), tmp_path / "graph", 3)
    graph = open_graph(tmp_path / "graph")
    (hub,) = graph.owner("node", graph.to_new("node", np.array([0])))
    found = cover_sizes(graph, [0, 1, 2], NODE_TO_NODE)
    assert found.halo.sum() == 30 - graph.part(int(hub)).num_nodes("node")
    assert found.sources.sum() == 0
    assert found.sums[hub].tolist() == [int(sender != hub) for sender in range(3)]
