"""Reference models on small batches."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.training.models import MODELS, make_model  # noqa: E402

EDGE_TYPES = [("paper", "cites", "paper"), ("author", "writes", "paper")]


@pytest.mark.parametrize("name", ["sage", "gcn", "gat"])
def test_a_row_per_node(name: str) -> None:
    model = make_model(name, 5, 8, 3, num_layers=2)
    out = model(torch.randn(6, 5), torch.tensor([[0, 1, 2], [3, 4, 5]]))
    assert out.shape == (6, 3)


def test_rgcn_has_rows_by_type_and_learns_rows_of_nodes_without_features() -> None:
    model: Any = make_model(
        "rgcn", {"paper": 5}, 8, 3, edge_types=EDGE_TYPES, num_nodes={"author": 9}
    )
    edges = {
        EDGE_TYPES[0]: torch.tensor([[0, 1], [2, 3]]),
        EDGE_TYPES[1]: torch.tensor([[0, 1], [0, 1]]),
    }
    ids = {"paper": torch.arange(4), "author": torch.tensor([7, 2])}
    out = model({"paper": torch.randn(4, 5)}, edges, ids)
    assert {name: tuple(rows.shape) for name, rows in out.items()} == {
        "paper": (4, 3),
        "author": (2, 3),
    }
    out["paper"].sum().backward()
    rows = model.rows["author"].weight.grad
    assert rows[[7, 2]].abs().sum() > 0
    assert rows[[0, 1, 3]].abs().sum() == 0


def test_rgcn_is_the_mean_per_relation_and_the_node_itself() -> None:
    model: Any = make_model("rgcn", {"paper": 2}, 4, 3, 1, edge_types=EDGE_TYPES[:1]).eval()
    x = torch.randn(3, 2)
    out = model({"paper": x}, {EDGE_TYPES[0]: torch.tensor([[1, 2], [0, 0]])})["paper"]
    hidden = model.inputs["paper"](x)
    layer = model.layers[0]
    own = hidden @ layer.root + layer.bias
    own[0] += hidden[[1, 2]].mean(0) @ layer.weight[0]
    torch.testing.assert_close(out, own)


def test_what_cannot_be_made_is_said() -> None:
    with pytest.raises(SpecError, match="no model 'mlp'"):
        make_model("mlp", 5, 8, 3)
    with pytest.raises(SpecError, match="types of the graph"):
        make_model("rgcn", 5, 8, 3)
    with pytest.raises(SpecError, match="one node type"):
        make_model("gcn", {"paper": 5}, 8, 3)
    assert set(MODELS) == {"sage", "gcn", "gat", "rgcn"}
