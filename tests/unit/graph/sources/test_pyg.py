from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.schema import Column
from headrace.graph.sources.pyg import from_pyg
from headrace.graph.sources.validate import check

torch = pytest.importorskip("torch")
pyg = pytest.importorskip("torch_geometric")
Data, HeteroData = pyg.data.Data, pyg.data.HeteroData


def data(**fields: Any) -> Any:
    given = {
        "x": torch.arange(8, dtype=torch.float32).reshape(4, 2),
        "edge_index": torch.tensor([[0, 1, 2], [1, 2, 3]]),
        "y": torch.tensor([0, 1, 0, 1]),
    }
    return Data(**(given | fields))


def by_name(columns: tuple[Column, ...]) -> dict[str, Column]:
    return {column.name: column for column in columns}


def test_all_tensors_per_node_and_edge_come_along() -> None:
    given = data(
        train_mask=torch.tensor([True, False, False, True]),
        time=torch.arange(4),
        edge_attr=torch.ones(3, 5),
        edge_weight=torch.rand(3),
        title="a graph",
        scale=torch.tensor(2.0),
    )
    source = from_pyg(given, "small")
    check(source)
    nodes, edges = by_name(source.nodes[0].columns), by_name(source.edges[0].columns)
    assert set(nodes) == {"x", "y", "time"}
    assert set(edges) == {"edge_attr", "edge_weight"}
    assert source.nodes[0].splits["train"].tolist() == [0, 3]
    assert np.shares_memory(nodes["x"].read(0, 4), given.x.numpy())
    (src, dst), *_ = source.edges[0].chunks()
    assert np.shares_memory(src, given.edge_index.numpy())
    assert np.array_equal(np.stack([src, dst]), given.edge_index.numpy())


def test_bfloat16_becomes_float32() -> None:
    x = torch.rand(4, 3).to(torch.bfloat16)
    column = by_name(from_pyg(data(x=x)).nodes[0].columns)["x"]
    assert (column.dtype, column.shape) == (np.dtype(np.float32), (3,))
    assert np.array_equal(column.read(1, 3), x[1:3].float().numpy())


def test_float16_stays() -> None:
    column = by_name(from_pyg(data(x=torch.rand(4, 3).half())).nodes[0].columns)["x"]
    assert column.dtype == np.float16


def test_sparse_features_are_filled() -> None:
    dense = torch.eye(4)
    column = by_name(from_pyg(data(x=dense.to_sparse())).nodes[0].columns)["x"]
    assert np.array_equal(column.read(0, 4), dense.numpy())


def test_an_edge_index_object_is_an_edge_index() -> None:
    index = pyg.EdgeIndex([[0, 1, 2], [1, 2, 3]], sparse_size=(4, 4))
    (src, _), *_ = from_pyg(data(edge_index=index)).edges[0].chunks()
    assert type(src) is np.ndarray
    assert src.tolist() == [0, 1, 2]


def test_several_types_keep_their_names() -> None:
    given = HeteroData()
    given["paper"].x = torch.rand(3, 2)
    given["paper"].train_mask = torch.tensor([True, True, False])
    given["author"].num_nodes = 2
    given["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    given["author", "writes", "paper"].time = torch.tensor([7, 8])
    source = from_pyg(given)
    check(source)
    assert [(table.name, table.num_nodes) for table in source.nodes] == [
        ("paper", 3),
        ("author", 2),
    ]
    assert source.edges[0].edge_type == ("author", "writes", "paper")
    assert by_name(source.edges[0].columns)["time"].read(0, 2).tolist() == [7, 8]
    assert source.nodes[0].splits["train"].tolist() == [0, 1]


def lacking_table() -> Any:
    given = HeteroData()
    given["paper"].x = torch.rand(3, 2)
    given["author", "writes", "paper"].edge_index = torch.tensor([[0, 1], [2, 0]])
    return given


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: {"x": 1}, "dict is not a graph: give a PyG Data"),
        (lambda: Data(x=torch.rand(3, 2)), "no edge_index"),
        (
            lambda: Data(edge_index=torch.tensor([[0], [1]])),
            "does not define the number of node nodes",
        ),
        (lambda: data(edge_index=torch.rand(2, 3)), "float32 of shape"),
        (lambda: data(edge_index=torch.tensor([[0, 1, 2]])), "shape"),
        (lambda: data(y=torch.tensor([0, 1])), "y of node nodes has shape"),
        (lambda: data(train_mask=torch.ones(4, 10, dtype=torch.bool)), "choose one column"),
        (lambda: data(train_mask=torch.ones(2, dtype=torch.bool)), "has 2 rows, not 4"),
        (lambda: data(edge_index=torch.tensor([[0], [9]])), "node 9"),
        (lambda: data(x=torch.full((4, 2), float("nan"))), "column x .* is nan in row 0"),
        (lacking_table, "type author"),
    ],
)
def test_wrong_objects_are_named(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        check(from_pyg(make()))
