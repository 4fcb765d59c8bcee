"""What is computed layer by layer is what the model gives for the whole graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
nn = pytest.importorskip("torch_geometric.nn")
pq = pytest.importorskip("pyarrow.parquet")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.format.partitioned_graph import open_graph  # noqa: E402
from headrace.graph.schema import GraphSource  # noqa: E402
from headrace.training.inference.layerwise import infer  # noqa: E402
from headrace.training.models import make_model  # noqa: E402
from tests.unit.graph.small_graphs import (  # noqa: E402
    endpoints,
    heterogeneous,
    homogeneous,
    write,
)

SOURCE = homogeneous(num_nodes=60, num_edges=400)
SMALL = 20_000
"""Bytes for chunks of a few nodes."""


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    write(SOURCE, folder, num_parts=3)
    return folder


def tensors(source: GraphSource) -> tuple[Any, Any, Any]:
    x = torch.tensor(source.nodes[0].columns[0].read(0, source.num_nodes)).float()
    edge_index = torch.from_numpy(np.stack(endpoints(source.edges[0])))
    weights = torch.tensor(source.edges[0].columns[0].read(0, source.num_edges))
    return x, edge_index, weights


def outputs(table: Path, name: str = "output") -> Any:
    read = pq.read_table(table)
    assert read["node"].to_pylist() == list(range(len(read)))
    return torch.tensor(read[name].to_pylist())


def assert_same(
    model: Any, parts: Path, folder: Path, settings: dict[str, Any], arguments: dict[str, Any]
) -> None:
    x, edge_index, _ = tensors(SOURCE)
    with torch.no_grad():
        expected = model.eval()(x, edge_index, **arguments)
    done = infer(model, parts, folder, write=["output", "prediction"], **settings)
    found = outputs(done.tables["node"])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert outputs(done.tables["node"], "prediction").tolist() == expected.argmax(1).tolist()
    assert not (folder / ".activations").exists()


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("GraphSAGE", {}),
        ("GraphSAGE", {"aggr": "max", "norm": "batch_norm", "act_first": True}),
        ("GraphSAGE", {"project": True}),
        ("GraphSAGE", {"jk": "cat"}),
        ("GraphSAGE", {"jk": "last"}),
        ("GCN", {}),
        ("GCN", {"improved": True, "jk": "max"}),
        ("GCN", {"add_self_loops": False}),
        ("GAT", {"heads": 2}),
        ("GAT", {"heads": 2, "v2": True, "norm": "layer_norm", "norm_kwargs": {"mode": "node"}}),
        ("GIN", {}),
        ("PNA", {"aggregators": ["mean", "max"], "scalers": ["amplification"]}),
        ("EdgeCNN", {}),
    ],
)
@pytest.mark.parametrize("memory_bytes", [SMALL, 1 << 24])
def test_models_of_pyg(
    kind: str, more: dict[str, Any], memory_bytes: int, parts: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    if kind == "PNA":
        more = more | {"deg": torch.tensor([0, 3, 5, 9, 12, 20])}
    model = getattr(nn, kind)(5, 8, num_layers=3, out_channels=4, dropout=0.5, **more)
    assert_same(model, parts, tmp_path, {"memory_bytes": memory_bytes}, {})


def test_weights_of_edges(parts: Path, tmp_path: Path) -> None:
    weights = tensors(SOURCE)[2]
    model = nn.GCN(5, 8, num_layers=2, out_channels=4)
    settings = {"edge_weight": "edge_weight", "memory_bytes": SMALL}
    assert_same(model, parts, tmp_path / "gcn", settings, {"edge_weight": weights})
    model = nn.GAT(5, 8, num_layers=2, out_channels=4, edge_dim=1)
    settings = {"edge_attr": "edge_weight", "memory_bytes": SMALL}
    assert_same(model, parts, tmp_path / "gat", settings, {"edge_attr": weights})
    with pytest.raises(SpecError, match="does not support edge_weight"):
        infer(nn.GAT(5, 8, 2, 4), parts, tmp_path, edge_weight="edge_weight")


def test_one_part_whose_features_are_used_where_they_lie(tmp_path: Path) -> None:
    write(SOURCE, tmp_path / "parts", num_parts=1, num_clusters=None)
    model = nn.GraphSAGE(5, 8, num_layers=2, out_channels=4)
    assert_same(model, tmp_path / "parts", tmp_path / "out", {}, {})


def test_layers_of_another_model(parts: Path, tmp_path: Path) -> None:
    class Mine(torch.nn.Module):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.SAGEConv(5, 8)
            self.second = nn.GraphConv(8, 4)
            self.head = torch.nn.Linear(4, 1)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.head(self.second(self.first(x, edge_index).relu(), edge_index))

    model = Mine().eval()
    sizes = []

    def second(x: Any, edge_index: Any, size: tuple[int, int], n_id: Any) -> Any:
        sizes.append(size)
        assert len(n_id) == size[0] == len(x)
        return model.head(model.second((x, x[: size[1]]), edge_index))

    x, edge_index, _ = tensors(SOURCE)
    layers: list[Any] = [lambda x, edges: model.first(x, edges).relu(), second]
    done = infer(
        model, parts, tmp_path, layers=layers, write=["prediction", "embedding"], memory_bytes=SMALL
    )
    found = outputs(done.tables["node"], "prediction")
    torch.testing.assert_close(found, model(x, edge_index)[:, 0])
    hidden = outputs(done.tables["node"], "embedding")
    torch.testing.assert_close(hidden, model.first(x, edge_index).relu())
    assert sum(targets for _, targets in sizes) == 60
    with pytest.raises(SpecError, match="layers of Mine"):
        infer(model, parts, tmp_path)


def test_a_graph_with_types(tmp_path: Path) -> None:
    source = heterogeneous()
    write(source, tmp_path / "parts", num_parts=3)
    graph = open_graph(tmp_path / "parts")
    torch.manual_seed(0)
    counts = {"author": 9, "venue": 2}
    model = make_model("rgcn", {"paper": 3}, 8, 4, 2, 0.5, graph.edge_types, counts).eval()
    x = {"paper": torch.tensor(source.nodes[0].columns[0].read(0, 20)).float()}
    edges = {
        table.edge_type: torch.from_numpy(np.stack(endpoints(table))) for table in source.edges
    }
    ids = {table.name: torch.arange(table.num_nodes) for table in source.nodes}
    expected = model(x, edges, ids)
    done = infer(model, graph, tmp_path / "out", write=["output"], memory_bytes=SMALL // 4)
    assert set(done.tables) == {"paper", "author", "venue"}
    for name, table in done.tables.items():
        assert table.name == f"nodes-{name}.parquet"
        torch.testing.assert_close(outputs(table), expected[name])
    one = infer(model, graph, tmp_path / "one", node_type="paper")
    assert list(one.tables) == ["paper"]
    with pytest.raises(SpecError, match="supports one node type"):
        infer(nn.GraphSAGE(3, 8, 2, 4), graph, tmp_path / "one")


def test_accuracy_of_every_split(parts: Path, tmp_path: Path) -> None:
    model = nn.GraphSAGE(5, 8, num_layers=2, out_channels=7).train()
    done = infer(model, parts, tmp_path)
    assert model.training
    found, table = outputs(done.tables["node"], "prediction"), SOURCE.nodes[0]
    labels = torch.tensor(table.columns[1].read(0, 60))
    assert done.accuracy["node"] == {
        split: float((found[ids] == labels[ids]).double().mean())
        for split, ids in ((name, torch.tensor(own)) for name, own in table.splits.items())
    }
    assert done.summary()["num_nodes"] == {"node": 60}
    assert done.summary()["widths"] == {"node": 7}


def test_what_cannot_be_inferred_is_said(parts: Path, tmp_path: Path) -> None:
    sage = nn.GraphSAGE(5, 8, num_layers=2, out_channels=4)
    with pytest.raises(SpecError, match="column 'z'"):
        infer(sage, parts, tmp_path, column="z")
    with pytest.raises(SpecError, match="unknown column 'everything'"):
        infer(sage, parts, tmp_path, write=["everything"])
    with pytest.raises(SpecError, match="normalizes over all nodes"):
        infer(nn.GraphSAGE(5, 8, 2, 4, norm="graph_norm"), parts, tmp_path)
    conv = nn.GCNConv(5, 4)
    with pytest.raises(SpecError, match="GCNConv needs more"):
        infer(torch.nn.Sequential(conv), parts, tmp_path, layers=[conv])
    with pytest.raises(SpecError, match=r"a layer returned 3[0-9]* rows|a layer returned"):
        infer(sage, parts, tmp_path, layers=[lambda x, edges: x[:1]], memory_bytes=SMALL)
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="cannot be created"):
        infer(sage, parts, tmp_path / "file")
    assert not (tmp_path / ".activations").exists()
