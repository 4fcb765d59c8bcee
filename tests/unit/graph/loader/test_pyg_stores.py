"""PyG sees a graph in parts as it sees any remote backend, and remote parts as local ones."""

from __future__ import annotations

import pickle
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.data import TensorAttr  # noqa: E402

from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph  # noqa: E402
from headrace.graph.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader  # noqa: E402
from headrace.graph.loader.pyg_stores import open_stores  # noqa: E402
from tests.unit.graph.loader.loading_graphs import (  # noqa: E402
    CITES,
    WRITES,
    FakeStore,
    assert_same,
    in_parts,
    random_data,
    random_hetero,
)


def test_columns_by_original_ids(tmp_path: Path) -> None:
    data = random_data()
    features, _ = open_stores(in_parts(data, tmp_path, 3))
    ids = torch.tensor([5, 0, 5, 79])
    for index in (ids, slice(3, 20, 2), None, 7, torch.arange(80) % 2 == 0):
        have = features.get_tensor(None, "x", index)
        assert torch.equal(have, data.x if index is None else data.x[index])
    names = [attr.attr_name for attr in features.get_all_tensor_attrs()]
    assert sorted(names) == ["time", "x", "y"]
    assert features.get_tensor_size(None, "x") == (80, 6)
    assert torch.equal(features[None, "y", None], data.y)
    assert features.get_tensor(("node", "to", "node"), "edge_attr", None).shape == (500, 3)
    for bad in (TensorAttr("paper", "x", None), TensorAttr(None, "z", None)):
        with pytest.raises(SpecError):
            features.get_tensor(bad)
    for of, name, row in ((None, "x", 80), (("node", "to", "node"), "edge_attr", 500)):
        with pytest.raises(SpecError):
            features.get_tensor(of, name, torch.tensor([row]))
    with pytest.raises(SpecError):
        features.put_tensor(data.x, None, "x", None)
    with pytest.raises(SpecError):
        features.remove_tensor(None, "x", None)


@pytest.mark.parametrize("num_parts", [1, 3])
def test_whole_edge_types(num_parts: int, tmp_path: Path) -> None:
    data = random_hetero()
    features, topology = open_stores(in_parts(data, tmp_path, num_parts))
    attrs = {attr.edge_type: attr for attr in topology.get_all_edge_attrs()}
    assert list(attrs) == data.edge_types
    assert attrs[WRITES].size == (25, 60)
    assert features.get_tensor("venue", "x", None).shape == (5, 4)
    rows, cols, _ = topology.coo()
    for edge_type in data.edge_types:
        ends = torch.stack([rows[edge_type], cols[edge_type]])
        assert sorted(ends.t().tolist()) == sorted(data[edge_type].edge_index.t().tolist())
        assert (cols[edge_type].diff() >= 0).all()
    row, colptr = topology.get_edge_index(CITES, "csc")
    assert len(colptr) == 61
    assert len(row) == 200
    assert torch.equal(torch.stack(topology.get_edge_index(CITES, "coo"))[0], row)
    for edge_type, layout in ((CITES, "csr"), (("a", "b", "c"), "csc")):
        with pytest.raises(KeyError):
            topology.get_edge_index(edge_type, layout)
    with pytest.raises(SpecError):
        topology.put_edge_index((row, colptr), CITES, "csc")
    with pytest.raises(SpecError):
        topology.remove_edge_index(CITES, "csc")


def without_parts(graph: PartitionedGraph, folder: Path, parts: tuple[int, ...]) -> Any:
    """The graph as a machine has it that stores only some parts."""
    shutil.copytree(graph.folder, folder)
    for part in parts:
        shutil.rmtree(folder / f"part-{part}")
    return open_graph(folder)


@pytest.mark.parametrize("gives_ids", [True, False])
@pytest.mark.parametrize("remote", [(1,), (0, 2), (0, 1, 2)])
def test_remote_parts_give_the_same_batches(
    remote: tuple[int, ...], gives_ids: bool, tmp_path: Path
) -> None:
    for name, data in (("one", random_data()), ("types", random_hetero())):
        graph = in_parts(data, tmp_path / name, 3)
        here = without_parts(graph, tmp_path / f"here-{name}", remote)
        stores = {part: FakeStore(graph, part, gives_ids) for part in remote}
        connect = {part: partial(stores.__getitem__, part) for part in remote}
        settings: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 16, "shuffle": True}
        settings["input_nodes"] = None if name == "one" else "paper"
        lost = () if gives_ids else ("e_id",)
        for disjoint in (False, True):
            wanted = NeighborLoader(graph, **settings, disjoint=disjoint)
            loader = NeighborLoader(here, **settings, disjoint=disjoint, connect=connect)
            for left, right in zip(wanted, loader, strict=True):
                assert_same(left, right, without=lost)
                assert ("e_id" in right) == (gives_ids and name == "one") or name == "types"
            for store in stores.values():
                for of, column, ids in store.asked:
                    if isinstance(of, str) and column != "ids":
                        assert len(ids.tolist()) == len(set(ids.tolist()))


@pytest.mark.parametrize("features", ["auto", "int8", "int4"])
@pytest.mark.parametrize("share", [0.5, 0.1, 1.0])
def test_encoded_features_give_the_batches_of_plain_ones(
    share: float, features: str, tmp_path: Path
) -> None:
    data = random_data()
    data.x = torch.randn(80, 70) * (torch.rand(80, 70) < share)
    if share == 0.5:
        data.x = (data.x != 0).float()
    plain = in_parts(data, tmp_path / "plain", 3)
    graph = in_parts(data, tmp_path / "encoded", 3, features=features)
    here = without_parts(graph, tmp_path / "here", (0, 2))
    connect = {part: partial(FakeStore, graph, part, True) for part in (0, 2)}
    settings: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 16, "shuffle": True}
    wanted = NeighborLoader(plain, **settings)
    local = NeighborLoader(graph, **settings)
    remote = NeighborLoader(here, **settings, connect=connect)
    for exact, left, right in zip(wanted, local, remote, strict=True):
        assert_same(left, right)
        if features == "auto":
            assert_same(exact, right)
        else:
            assert_same(exact, right, without=("x",))
            assert (exact.x - right.x).abs().max() < (0.03 if features == "int8" else 0.5)


def test_remote_parts_with_weights_and_links(tmp_path: Path) -> None:
    data = random_data()
    graph = in_parts(data, tmp_path, 2)
    here = without_parts(graph, tmp_path / "here", (1,))
    connect = {1: lambda: FakeStore(graph, 1, True)}
    links = {"edge_label_index": data.edge_index[:, :50], "neg_sampling": "binary"}
    settings: dict[str, Any] = {"num_neighbors": [2, 2], "batch_size": 16, **links}
    settings["weight_attr"] = "edge_weight"
    wanted = LinkNeighborLoader(graph, **settings)
    loader = LinkNeighborLoader(here, **settings, connect=connect)
    for left, right in zip(wanted, loader, strict=True):
        assert_same(left, right)


def test_what_remote_parts_cannot_give(tmp_path: Path) -> None:
    data = random_data()
    data.train_mask = torch.arange(80) % 2 == 0
    graph = in_parts(data, tmp_path, 2)
    connect = {1: lambda: FakeStore(graph, 1, True)}
    refused: list[tuple[str, dict[str, Any]]] = [
        ("not on this machine", {"input_nodes": "train"}),
        ("is a time of nodes", {"time_attr": "time"}),
        ("has no column", {"time_attr": "nothing"}),
        ("has no column", {"weight_attr": "nothing"}),
        ("has no column", {"weight_attr": "x"}),
        ("weights of", {"weight_attr": "edge_attr"}),
        ("times of", {"time_attr": "edge_weight"}),
    ]
    for problem, settings in refused:
        with pytest.raises(SpecError, match=problem):
            NeighborLoader(graph, [2], connect=connect, **settings)
    with pytest.raises(SpecError):
        LinkNeighborLoader(graph, [2], connect=connect)
    loader = NeighborLoader(graph, [2], connect=connect)
    next(iter(loader))
    busy = NeighborLoader(loader.data, [2], num_workers=1)
    with pytest.raises(SpecError):
        next(iter(busy))
    loader.data[0].access.stores.close()
    assert not loader.data[0].access.stores.is_connected


def test_a_loader_survives_pickling(tmp_path: Path) -> None:
    graph = in_parts(random_data(), tmp_path, 2)
    loader = NeighborLoader(graph, [3, 2], batch_size=16)
    sampler = pickle.loads(pickle.dumps(loader.node_sampler))
    again = NeighborLoader(graph, [3, 2], neighbor_sampler=sampler, batch_size=16)
    for left, right in zip(loader, again, strict=True):
        assert_same(left, right)
