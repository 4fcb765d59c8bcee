"""Every real dataset loads whole, with the sizes its publishers give."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.schema import GraphSource
from headrace.graph.sources.resolve import open_source
from headrace.graph.sources.validate import check

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.exists() and "CI" not in os.environ, reason="the datasets are not here"
)
pytestmark = [pytest.mark.integration, needs_data]

# Folder: nodes, edges, edge types, classes, width of x.
HOMOGENEOUS = {
    "planetoid/cora.npz": (2708, 10556, 7, 1433),
    "planetoid/citeseer.npz": (3327, 9104, 6, 3703),
    "planetoid/pubmed.npz": (19717, 88648, 3, 500),
    "amazon_computers": (13752, 491722, 10, 767),
    "amazon_photo": (7650, 238162, 8, 745),
    "coauthor_cs": (18333, 163788, 15, 6805),
    "coauthor_physics": (34493, 495924, 5, 8415),
}
TYPED = {"debian_bookworm": (63436, 358218, 9, 58), "wordnet30": (117659, 377592, 26, 45)}
TRIPLES = {
    "fb15k-237": (14541, 237, 272115, 17535, 20466),
    "wn18rr": (40943, 11, 86835, 3034, 3134),
}


def opened(name: str) -> GraphSource:
    source = open_source(str(DATA / name), 0)
    check(source)
    return source


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_one_type(name: str) -> None:
    num_nodes, num_edges, num_classes, width = HOMOGENEOUS[name]
    source = opened(name)
    assert (source.num_nodes, source.num_edges) == (num_nodes, num_edges)
    x, y = source.nodes[0].columns
    assert x.shape == (width,)
    assert len(np.unique(y.read(0, num_nodes))) == num_classes
    assert set(source.nodes[0].splits) == {"train", "val", "test"}


@pytest.mark.parametrize("name", TYPED)
def test_typed_edges(name: str) -> None:
    num_nodes, num_edges, num_relations, num_classes = TYPED[name]
    source = opened(name)
    assert (source.num_nodes, source.num_edges) == (num_nodes, 2 * num_edges)
    assert len(source.edges) == 2 * num_relations
    x, y = source.nodes[0].columns
    assert x.shape == (128,)
    assert len(np.unique(y.read(0, num_nodes))) == num_classes
    shares = {split: len(ids) / num_nodes for split, ids in source.nodes[0].splits.items()}
    assert shares == pytest.approx({"train": 0.5, "val": 0.1, "test": 0.4}, abs=1e-4)


@pytest.mark.parametrize("name", TRIPLES)
def test_triples(name: str) -> None:
    num_nodes, num_relations, *num_triples = TRIPLES[name]
    source = opened(name)
    assert (source.num_nodes, len(source.edges)) == (num_nodes, num_relations)
    held_out = [
        sum(len(link.src) for link in source.links if link.split == split)
        for split in ("val", "test")
    ]
    assert [source.num_edges, *held_out] == num_triples


def test_imdb() -> None:
    pytest.importorskip("pyarrow")
    source = opened("gds_hetero/imdb")
    assert {table.name: table.num_nodes for table in source.nodes} == {
        "movie": 4661,
        "actor": 5841,
        "director": 2270,
    }
    assert [table.num_edges for table in source.edges] == [13983, 13983, 4661, 4661]
    x, y = source.nodes[0].columns
    labels = y.read(0, 4661)
    assert x.shape == (1256,)
    assert np.unique(labels).tolist() == [-1, 0, 1, 2]
    assert all((labels[ids] >= 0).all() for ids in source.nodes[0].splits.values())


def test_lastfm() -> None:
    pytest.importorskip("pyarrow")
    source = opened("gds_hetero/lastfm")
    assert source.num_nodes == 1892 + 18022
    assert source.num_edges == 2 * (12717 + 92834 + 186479)
    tagged = next(table for table in source.edges if table.edge_type[1] == "tagged")
    assert [column.name for column in tagged.columns] == ["tag", "time"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("planetoid", "has 3 graphs: choose one: .*citeseer.npz"),
        ("gds_hetero", "choose one: .*imdb or .*lastfm"),
        ("gds_hetero/netflix", "does not exist"),
        ("ogbn", "does not exist"),
    ],
)
def test_folders_of_several_graphs_list_them(name: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        open_source(str(DATA / name), 0)


@pytest.mark.parametrize("name", ["amazon_photo", "coauthor_cs"])
def test_benchmark_graphs_are_those_of_pyg(name: str) -> None:
    io = pytest.importorskip("torch_geometric.io")
    pytest.importorskip("scipy")
    (path,) = (DATA / name).glob("*.npz")
    expected = io.read_npz(str(path))
    source = open_source(str(path), 0)
    chunks = list(source.edges[0].chunks())
    src, dst = (np.concatenate(ends) for ends in zip(*chunks, strict=True))
    assert np.array_equal(np.stack([src, dst]), expected.edge_index.numpy())
    x, y = source.nodes[0].columns
    assert np.array_equal(x.read(100, 2000), expected.x[100:2000].numpy())
    assert np.array_equal(y.read(0, source.num_nodes), expected.y.numpy())
