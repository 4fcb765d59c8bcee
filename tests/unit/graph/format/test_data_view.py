"""A graph in parts answers what scripts ask of PyG's `Data` and `HeteroData`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from headrace.api.graph import partition  # noqa: E402
from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.format.partitioned_graph import open_graph  # noqa: E402
from tests.unit.graph.loader.loading_graphs import random_data, random_hetero  # noqa: E402
from tests.unit.graph.small_graphs import homogeneous, write  # noqa: E402


def test_sizes_labels_and_masks_are_those_of_the_source(tmp_path: Path) -> None:
    data = random_data()
    data.train_mask, data.test_mask = data.y == 0, data.y == 1
    graph: Any = partition(data, tmp_path / "parts", 3)
    for name in ("num_nodes", "num_edges", "num_features", "num_node_features"):
        assert getattr(graph, name) == getattr(data, name), name
    assert graph.metadata() == (["node"], [("node", "to", "node")])
    assert torch.equal(graph.y, data.y)
    assert graph.num_classes == int(data.y.max()) + 1
    for name in ("train_mask", "test_mask"):
        assert torch.equal(getattr(graph, name), data[name]), name


def test_types_are_those_of_the_source(tmp_path: Path) -> None:
    data = random_hetero()
    graph: Any = partition(data, tmp_path / "parts", 2)
    nodes, edges = graph.metadata()
    assert set(nodes) == set(data.node_types)
    assert set(edges) == set(data.edge_types)
    assert (graph.num_nodes, graph.num_edges) == (data.num_nodes, data.num_edges)
    for name in data.node_types:
        assert graph[name].num_nodes == data[name].num_nodes
        assert graph[name].num_features == data[name].num_node_features
        assert graph.num_features[name] == data[name].num_node_features
        if "train_mask" in data[name]:
            assert torch.equal(graph[name].train_mask, data[name].train_mask)
    for edge_type in data.edge_types:
        assert graph[edge_type].num_edges == data[edge_type].num_edges


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    write(homogeneous(), tmp_path / "parts", 2)
    graph: Any = open_graph(tmp_path / "parts")
    with pytest.raises(AttributeError, match="x is not loaded as a whole"):
        graph.x  # noqa: B018
    with pytest.raises(AttributeError, match="has no 'wings'"):
        graph.wings  # noqa: B018
    with pytest.raises(SpecError, match="use one of node"):
        graph["author"]
    assert not hasattr(graph, "_anything")
    shutil.rmtree(tmp_path / "parts" / "part-1")
    with pytest.raises(SpecError, match="graph partition 1 is not on this machine"):
        open_graph(tmp_path / "parts").train_mask  # noqa: B018


def test_a_graph_without_masks_says_so(tmp_path: Path) -> None:
    graph: Any = partition(random_data(), tmp_path / "parts", 2)
    with pytest.raises(AttributeError, match="no train split; its source has no masks"):
        graph.train_mask  # noqa: B018
