"""Batches are what PyG's would be, whatever the number of parts."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import torch_geometric.loader as pyg  # noqa: E402
from torch_geometric.nn import GraphSAGE, HeteroConv, SAGEConv  # noqa: E402
from torch_geometric.utils import k_hop_subgraph, trim_to_layer  # noqa: E402

from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader  # noqa: E402
from headrace.graph.loader.pyg_stores import open_stores  # noqa: E402
from tests.unit.graph.loader.loading_graphs import (  # noqa: E402
    CITES,
    WRITES,
    assert_same,
    in_parts,
    random_data,
    random_hetero,
)

PARTS = (1, 2, 4)


def gradients(model: Any) -> list[Any]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_close(left: list[Any], right: list[Any]) -> None:
    for first, second in zip(left, right, strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("ours", [NeighborLoader, LinkNeighborLoader])
def test_signatures_are_pygs(ours: Any) -> None:
    wanted = list(inspect.signature(getattr(pyg, ours.__name__).__init__).parameters.values())
    have = list(inspect.signature(ours.__init__).parameters.values())
    pairs = zip(wanted[:-1], have, strict=False)
    assert all((a.name, a.default, a.kind) == (b.name, b.default, b.kind) for a, b in pairs)
    extras = have[len(wanted) - 1 : -1]
    assert all(extra.kind is inspect.Parameter.KEYWORD_ONLY for extra in extras)


@pytest.mark.parametrize("num_parts", PARTS)
def test_with_all_neighbours_batches_and_gradients_are_those_of_the_whole_graph(
    num_parts: int, tmp_path: Path
) -> None:
    data = random_data()
    loader = NeighborLoader(in_parts(data, tmp_path, num_parts), [-1, -1], batch_size=16)
    torch.manual_seed(0)
    model = GraphSAGE(6, 8, num_layers=2, out_channels=4)
    for batch in loader:
        seeds = batch.n_id[: batch.batch_size]
        wanted, _, _, edges = k_hop_subgraph(seeds, 2, data.edge_index, num_nodes=80)
        assert set(batch.n_id.tolist()) == set(wanted.tolist())
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert set(batch.e_id.tolist()) <= set(edges.nonzero().view(-1).tolist())
        torch.testing.assert_close(batch.x, data.x[batch.n_id])
        model.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        have = gradients(model)
        model.zero_grad()
        whole = model(data.x, data.edge_index)[seeds]
        torch.nn.functional.cross_entropy(whole, data.y[seeds]).backward()
        assert_close([out], [whole])
        assert_close(have, gradients(model))


@pytest.mark.parametrize("num_parts", PARTS)
def test_with_types_too(num_parts: int, tmp_path: Path) -> None:
    data = random_hetero()
    graph = in_parts(data, tmp_path, num_parts)
    loader = NeighborLoader(graph, [-1, -1], input_nodes=("paper", "train"), batch_size=8)
    torch.manual_seed(0)
    layers = [
        HeteroConv({e: SAGEConv((-1, -1), 5) for e in data.edge_types}, aggr="sum")
        for _ in range(2)
    ]
    model = torch.nn.ModuleList(layers)

    def logits(batch: Any) -> Any:
        x = layers[0](batch.x_dict, batch.edge_index_dict)
        return layers[1]({k: v.relu() for k, v in x.items()}, batch.edge_index_dict)["paper"]

    logits(data)  # makes parameters
    seen = []
    for batch in loader:
        paper = batch["paper"]
        seeds = paper.n_id[: paper.batch_size]
        seen.append(seeds)
        model.zero_grad()
        out = logits(batch)[: paper.batch_size]
        torch.nn.functional.cross_entropy(out, paper.y[: paper.batch_size]).backward()
        have = gradients(model)
        model.zero_grad()
        whole = logits(data)[seeds]
        torch.nn.functional.cross_entropy(whole, data["paper"].y[seeds]).backward()
        assert_close([out], [whole])
        assert_close(have, gradients(model))
        for edge_type in data.edge_types:
            store = batch[edge_type]
            ends = torch.stack(
                [
                    batch[name].n_id[row]
                    for name, row in zip(edge_type[::2], store.edge_index, strict=True)
                ]
            )
            assert torch.equal(ends, data[edge_type].edge_index[:, store.e_id])
            assert torch.equal(store.edge_attr, data[edge_type].edge_attr[store.e_id])
    assert torch.equal(torch.cat(seen), data["paper"].train_mask.nonzero().view(-1))


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "replace": {"replace": True},
    "labor": {"labor": True},
    "disjoint": {"disjoint": True},
    "weights": {"weight_attr": "edge_weight"},
    "times": {"time_attr": "time"},
    "given times": {"time_attr": "time", "input_time": torch.arange(80)},
    "last": {"time_attr": "time", "temporal_strategy": "last"},
    "both ways": {"subgraph_type": "bidirectional"},
    "induced": {"subgraph_type": "induced"},
    "shuffled": {"shuffle": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_batches(case: str, tmp_path: Path) -> None:
    data = random_data()
    settings = {"num_neighbors": [3, 2], "batch_size": 16, "seed": 7, **CASES[case]}
    wanted = NeighborLoader(data, **settings)
    epochs = [list(wanted), list(wanted)]
    differs = [not torch.equal(a.n_id, b.n_id) for a, b in zip(*epochs, strict=True)]
    assert any(differs) or case == "last"
    for num_parts in PARTS:
        loader = NeighborLoader(in_parts(data, tmp_path, num_parts), **settings)
        for epoch in epochs:
            for left, right in zip(epoch, loader, strict=True):
                assert_same(left, right)
                assert torch.equal(right.x, data.x[right.n_id])
                assert torch.equal(right.edge_attr, data.edge_attr[right.e_id])
                ends = right.n_id[right.edge_index]
                if case != "both ways":
                    assert torch.equal(ends, data.edge_index[:, right.e_id])
                if case == "induced":
                    inside = torch.isin(data.edge_index, right.n_id).all(dim=0).nonzero()
                    assert torch.equal(right.e_id.sort().values, inside.view(-1))
                if "time_attr" in settings:
                    seeds = right.n_id[: right.batch_size]
                    given = settings.get("input_time")
                    until = data.time[seeds] if given is None else given[right.input_id]
                    later = data.time[right.n_id] > until[right.batch]
                    assert not later[right.batch_size :].any()


def test_epochs_and_seeds_differ_and_a_training_can_be_continued() -> None:
    data = random_data()
    settings: dict[str, Any] = {"num_neighbors": [2], "batch_size": 20, "shuffle": True}
    loader = NeighborLoader(data, **settings, seed=1)
    epochs = [list(loader) for _ in range(3)]
    assert not torch.equal(epochs[0][0].input_id, epochs[1][0].input_id)
    again = NeighborLoader(data, **settings, seed=1)
    again.epoch = 2
    for left, right in zip(epochs[2], again, strict=True):
        assert_same(left, right)
    other = next(iter(NeighborLoader(data, **settings, seed=2)))
    assert not torch.equal(other.input_id, epochs[0][0].input_id)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_workers_make_the_same_batches(filter_per_worker: bool, tmp_path: Path) -> None:
    graph = in_parts(random_data(), tmp_path, 2)
    settings: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 16, "shuffle": True}
    wanted = NeighborLoader(graph, **settings)
    loader = NeighborLoader(
        graph,
        **settings,
        num_workers=2,
        persistent_workers=True,
        filter_per_worker=filter_per_worker,
    )
    for _ in range(2):
        for left, right in zip(wanted, loader, strict=True):
            assert_same(left, right)
    # Else workers end with the next garbage collection, which waits 5 s for each.
    loader._iterator = None


def test_seeds_in_all_their_forms(tmp_path: Path) -> None:
    data = random_data()
    data.train_mask = torch.arange(80) % 3 == 0
    graph = in_parts(data, tmp_path, 2)
    ids = data.train_mask.nonzero().view(-1)
    forms = ("train", ids, ids.to(torch.int32), data.train_mask, ids.tolist(), ids.numpy())
    for form in forms:
        for given in (graph, graph.folder, str(graph.folder), open_stores(graph), data):
            batch = next(iter(NeighborLoader(given, [2], form, batch_size=9)))
            assert torch.equal(batch.n_id[:9], ids[:9])
            rows = ids if form is data.train_mask else torch.arange(len(ids))
            assert torch.equal(batch.input_id, rows[:9])
    assert torch.equal(batch.train_mask, data.train_mask[batch.n_id])
    assert NeighborLoader(graph, [2], ids)(torch.tensor([0, 3])).n_id[1] == ids[3]


@pytest.mark.parametrize(
    "form", ["paper", torch.arange(81), torch.zeros(3, dtype=torch.bool), torch.rand(3), [-1]]
)
def test_seeds_that_are_none(form: Any, tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        NeighborLoader(random_data(), [2], form)


def test_what_is_refused(tmp_path: Path) -> None:
    data, hetero = random_data(), random_hetero()
    for settings in (
        {"directed": False, "disjoint": True},
        {"temporal_strategy": "first"},
        {"temporal_strategy": "last", "time_attr": "time", "replace": True},
        {"weight_attr": "nothing"},
        {"time_attr": "nothing"},
        {"input_time": torch.arange(80)},
        {"connect": {0: lambda: None}},
    ):
        with pytest.raises(SpecError):
            NeighborLoader(data, [2], **settings)
    for nodes in (None, "person", ("paper", "valid"), ("paper", "val")):
        with pytest.raises(SpecError):
            NeighborLoader(hetero, [2], nodes)
    with pytest.raises(SpecError):
        NeighborLoader({"x": 1}, [2])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_features_are_handed_over_long(dtype: str, tmp_path: Path) -> None:
    data = random_data()
    graph = in_parts(data, tmp_path, 3, features=dtype)
    short = getattr(torch, dtype)
    batch = next(iter(NeighborLoader(graph, [3], batch_size=8)))
    assert batch.x.dtype == torch.float32
    assert torch.equal(batch.x, data.x[batch.n_id].to(short).float())
    batch = next(iter(NeighborLoader(graph, [3], batch_size=8, keep_dtype=True)))
    assert torch.equal(batch.x, data.x[batch.n_id].to(short))


def test_layers_can_be_trimmed(tmp_path: Path) -> None:
    graph = in_parts(random_data(), tmp_path, 2)
    model = GraphSAGE(6, 8, num_layers=2, out_channels=4)
    for batch in NeighborLoader(graph, [4, 3], batch_size=10):
        assert sum(batch.num_sampled_nodes) == len(batch.n_id)
        x, edge_index = batch.x, batch.edge_index
        for layer, conv in enumerate(model.convs):
            x, edge_index, _ = trim_to_layer(
                layer, batch.num_sampled_nodes, batch.num_sampled_edges, x, edge_index
            )
            x = conv(x, edge_index)
            x = x.relu() if layer == 0 else x
        whole = model(batch.x, batch.edge_index)
        torch.testing.assert_close(x[:10], whole[:10])
        trimmed = model(
            batch.x,
            batch.edge_index,
            num_sampled_nodes_per_hop=batch.num_sampled_nodes,
            num_sampled_edges_per_hop=batch.num_sampled_edges,
        )
        torch.testing.assert_close(trimmed[:10], whole[:10])


def test_our_sampler_and_stores_work_in_pygs_own_loader(tmp_path: Path) -> None:
    data = random_data()
    for name in ("edge_attr", "edge_weight"):
        del data[name]
    graph = in_parts(data, tmp_path, 2)
    ours = NeighborLoader(graph, [3, 2], batch_size=8)
    theirs = pyg.NodeLoader(ours.data, ours.node_sampler, torch.arange(80), batch_size=8)
    for batch in theirs:
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])


def test_transforms_see_original_ids(tmp_path: Path) -> None:
    data = random_data()

    def drop_edges(out: Any) -> Any:
        out.row, out.col, out.edge = out.row[:1], out.col[:1], out.edge[:1]
        return out

    def count(batch: Any) -> Any:
        batch.count = batch.num_nodes
        return batch

    graph = in_parts(data, tmp_path, 2)
    loader = NeighborLoader(graph, [3], transform=count, transform_sampler_output=drop_edges)
    batch = next(iter(loader))
    assert batch.count == len(batch.n_id)

    def make_up(out: Any) -> Any:
        out.edge = out.edge + 500
        return out

    with pytest.raises(SpecError):
        next(iter(NeighborLoader(graph, [3], transform_sampler_output=make_up)))
    assert batch.edge_index.shape == (2, 1)
    assert torch.equal(batch.x, data.x[batch.n_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])


@pytest.mark.parametrize("mode", ["binary", "triplet"])
@pytest.mark.parametrize("disjoint", [False, True])
def test_links_and_negatives(mode: str, disjoint: bool, tmp_path: Path) -> None:
    data = random_data()
    settings: dict[str, Any] = {
        "num_neighbors": [3, 2],
        "edge_label_index": data.edge_index[:, :100],
        "neg_sampling": {"mode": mode, "amount": 2},
        "batch_size": 30,
        "shuffle": True,
        "disjoint": disjoint,
    }
    wanted = list(LinkNeighborLoader(data, **settings))
    for num_parts in PARTS:
        loader = LinkNeighborLoader(in_parts(data, tmp_path, num_parts), **settings)
        for left, right in zip(wanted, loader, strict=True):
            assert_same(left, right)
    for batch in wanted:
        count = len(batch.input_id)
        positive = data.edge_index[:, batch.input_id]
        if mode == "binary":
            assert batch.edge_label.tolist() == [1.0] * count + [0.0] * 2 * count
            assert torch.equal(batch.n_id[batch.edge_label_index[:, :count]], positive)
            assert batch.edge_label_index.shape == (2, 3 * count)
        else:
            assert torch.equal(batch.n_id[batch.src_index], positive[0])
            assert torch.equal(batch.n_id[batch.dst_pos_index], positive[1])
            assert batch.dst_neg_index.shape == (count, 2)


def test_links_between_types(tmp_path: Path) -> None:
    data = random_hetero()
    settings: dict[str, Any] = {"neg_sampling_ratio": 1.0, "batch_size": 20}
    for edge_type in (WRITES, CITES):
        wanted = list(LinkNeighborLoader(data, [3, 2], edge_type, **settings))
        for num_parts in PARTS:
            graph = in_parts(data, tmp_path / edge_type[1], num_parts)
            links = edge_type, data[edge_type].edge_index
            loader = LinkNeighborLoader(graph, [3, 2], links, **settings)
            for left, right in zip(wanted, loader, strict=True):
                assert_same(left, right, without=("train_mask",))
        store = wanted[0][edge_type]
        src, dst = store.edge_label_index[:, :20]
        assert torch.equal(wanted[0][edge_type[0]].n_id[src], data[edge_type].edge_index[0, :20])
        assert torch.equal(wanted[0][edge_type[2]].n_id[dst], data[edge_type].edge_index[1, :20])
    everything = LinkNeighborLoader(graph, [1], CITES, batch_size=1000)
    ends = next(iter(everything))["paper"].n_id[next(iter(everything))[CITES].edge_label_index]
    assert sorted(ends.t().tolist()) == sorted(data[CITES].edge_index.t().tolist())


def test_links_with_times(tmp_path: Path) -> None:
    data = random_data()
    settings: dict[str, Any] = {
        "num_neighbors": [3, 2],
        "edge_label_index": data.edge_index[:, :40],
        "edge_label_time": 50 + torch.arange(40),
        "time_attr": "time",
        "neg_sampling": "binary",
        "batch_size": 20,
    }
    wanted = list(LinkNeighborLoader(data, **settings))
    loader = LinkNeighborLoader(in_parts(data, tmp_path, 3), **settings)
    for left, right in zip(wanted, loader, strict=True):
        assert_same(left, right)
        until = right.edge_label_time[:20][right.batch]
        met = torch.arange(len(right.n_id)) >= right.num_sampled_nodes[0]
        assert not (data.time[right.n_id] > until)[met].any()
        negatives = right.edge_label_index[:, 20:].reshape(-1)
        until = right.edge_label_time[20:].repeat(2)
        assert not (data.time[right.n_id[negatives]] > until).any()


def test_links_that_are_none() -> None:
    data, hetero = random_data(), random_hetero()
    for given, links in (
        (data, torch.arange(4)),
        (data, "test"),
        (hetero, None),
        (hetero, ("a", "b")),
    ):
        with pytest.raises(SpecError):
            LinkNeighborLoader(given, [2], links)
    with pytest.raises(SpecError):
        LinkNeighborLoader(data, [2], time_attr="time")
