"""Parts of a graph: together they have all nodes and edges, and halos are what others own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.nn import SAGEConv  # noqa: E402

from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.format.partitioned_graph import open_graph  # noqa: E402
from headrace.training.full_graph.full_graph import FullGraph  # noqa: E402
from headrace.training.full_graph.layers import wrap_layers  # noqa: E402
from headrace.training.full_graph.part import GraphPart, Ownership, halo_sizes  # noqa: E402
from tests.unit.graph.small_graphs import (  # noqa: E402
    NODE_TO_NODE,
    endpoints,
    heterogeneous,
    homogeneous,
    write,
)


def ownership_of(trainers: list[int], offsets: dict[str, list[int]]) -> Ownership:
    given = {name: np.array(each) for name, each in offsets.items()}
    return Ownership(given, np.array(trainers))


def test_nodes_of_a_trainer_are_numbered_over_its_partitions() -> None:
    ownership = ownership_of([1, 0, 1], {"node": [0, 2, 5, 9]})
    trainers, rows = ownership.locate("node", np.arange(9))
    assert trainers.tolist() == [1, 1, 0, 0, 0, 1, 1, 1, 1]
    assert rows.tolist() == [0, 1, 0, 1, 2, 2, 3, 4, 5]
    assert [ownership.num_nodes("node", trainer) for trainer in (0, 1)] == [3, 6]


@pytest.mark.parametrize("trainers", [[0, 0, 0], [0, 1, 0], [2, 0, 1]])
def test_parts_have_all_edges(tmp_path: Path, trainers: list[int]) -> None:
    source = homogeneous(40, 200)
    write(source, tmp_path / "graph", 3)
    graph = open_graph(tmp_path / "graph")
    ownership = Ownership({"node": graph.offsets("node")}, np.array(trainers))
    parts = [GraphPart(graph, ownership, number) for number in range(max(trainers) + 1)]
    batches = [part.batch() for part in parts]
    found: list[tuple[int, int, float]] = []
    for part, batch in zip(parts, batches, strict=True):
        owners, rows = part.halo(NODE_TO_NODE)
        halo = [batches[owner].n_id[row] for owner, row in zip(owners, rows, strict=True)]
        ids = torch.cat([batch.n_id, torch.tensor(halo, dtype=torch.int64)])
        sources, destinations = batch.edge_index
        assert set(sources[sources >= len(batch.n_id)].tolist()) == set(
            range(len(batch.n_id), len(ids))
        )
        found += zip(
            ids[sources].tolist(),
            batch.n_id[destinations].tolist(),
            batch.edge_weight.tolist(),
            strict=True,
        )
    weights = source.edges[0].columns[0].read(0, 200).tolist()
    assert sorted(found) == sorted(zip(*endpoints(source.edges[0]), weights, strict=True))
    columns = {column.name: column.read(0, 40) for column in source.nodes[0].columns}
    for batch in batches:
        assert (batch.x.numpy() == columns["x"][batch.n_id]).all()
        assert (batch.y.numpy() == columns["y"][batch.n_id]).all()
    train = torch.cat([batch.n_id[batch.train_mask] for batch in batches])
    assert sorted(train.tolist()) == source.nodes[0].splits["train"].tolist()


def test_halos_of_types_follow_all_nodes(tmp_path: Path) -> None:
    write(heterogeneous(num_papers=40), tmp_path / "graph", 2)
    graph = open_graph(tmp_path / "graph")
    offsets = {name: graph.offsets(name) for name in graph.node_types}
    part = GraphPart(graph, Ownership(offsets, np.array([0, 1])), 0)
    num_nodes = [part.num_nodes(name) for name in graph.node_types]
    starts = dict(zip(graph.node_types, np.cumsum([0, *num_nodes]), strict=False))
    joined = torch.cat([part.edge_index(each)[0] + starts[each[0]] for each in graph.edge_types])
    behind = joined[joined >= sum(num_nodes)] - sum(num_nodes)
    assert torch.equal(torch.bincount(behind), part.halo_edges())
    assert len(part.halo_edges()) == len(part.joined_halo()[0])


def test_halo_sizes_count_rows_by_receiver_and_sender(tmp_path: Path) -> None:
    source = homogeneous(40, 200)
    write(source, tmp_path / "graph", 3)
    graph = open_graph(tmp_path / "graph")
    sizes = halo_sizes(graph, [0, 1, 1])[NODE_TO_NODE]
    sources, destinations = (
        graph.owner("node", graph.to_new("node", ids)) > 0 for ids in endpoints(source.edges[0])
    )
    ids = endpoints(source.edges[0])[0]
    expected = [len(np.unique(ids[(sources != destinations) & (sources == n)])) for n in (1, 0)]
    assert sizes.tolist() == [[0, expected[0]], [expected[1], 0]]


def test_partitions_go_to_trainers_that_have_them(tmp_path: Path) -> None:
    write(homogeneous(40, 200), tmp_path / "graph", 3)
    graph = open_graph(tmp_path / "graph")
    here = np.array([[True, True, True], [False, True, False]])
    assert Ownership.balanced(graph, here).trainers.tolist() == [0, 1, 0]
    with pytest.raises(SpecError, match="partition 2 is not on the machine"):
        Ownership.balanced(graph, np.array([[True, True, False]]))
    with pytest.raises(SpecError, match="4 trainers"):
        Ownership.balanced(graph, np.ones((4, 3), bool))


def test_layers_refuse_other_batches(tmp_path: Path) -> None:
    write(homogeneous(40, 200), tmp_path / "graph", 2)
    data = FullGraph(open_graph(tmp_path / "graph"))
    layer = SAGEConv(5, 2)
    data.wrap(layer)
    (batch,) = data
    assert layer(batch.x, batch.edge_index).shape == (40, 2)
    with pytest.raises(SpecError, match="got 10 nodes, this trainer has 40"):
        layer(batch.x[:10], batch.edge_index[:, :0])


def test_a_model_that_is_prepared_again_is_scaled_once(tmp_path: Path) -> None:
    write(homogeneous(40, 200), tmp_path / "graph", 2)
    data = FullGraph(open_graph(tmp_path / "graph"))
    layer = torch.nn.Linear(5, 1, bias=False)
    for _ in range(2):
        wrap_layers(layer, data.halos, 3.0)
    layer(torch.ones(1, 5)).sum().backward()
    assert layer.weight.grad.tolist() == [[3.0] * 5]


def test_sizes_that_a_model_leaves_open_are_found(tmp_path: Path) -> None:
    write(homogeneous(40, 200), tmp_path / "graph", 2)
    layer = SAGEConv(-1, 2).train()
    FullGraph(open_graph(tmp_path / "graph")).wrap(layer)
    assert layer.lin_l.weight.shape == (2, 5)
    assert layer.training
