"""Which layers are products with sparse matrices, and which edges rows serve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch_geometric.nn import (  # noqa: E402
    APPNP,
    ClusterGCNConv,
    FiLMConv,
    GATConv,
    GCNConv,
    GINConv,
    GraphConv,
    MessagePassing,
    SAGEConv,
    SGConv,
    TAGConv,
)

from headrace.training.full_graph.aggregation import add_up  # noqa: E402
from headrace.training.full_graph.exchange import HaloExchange  # noqa: E402
from headrace.training.full_graph.linear_sums import is_linear, served_by_rows  # noqa: E402


class Own(MessagePassing):  # type: ignore[misc]
    """A user's layer."""

    def message(self, x_j: Any) -> Any:
        """With a docstring."""
        return x_j


class Squares(MessagePassing):  # type: ignore[misc]
    """A user's layer that is not linear."""

    def message(self, x_j: Any) -> Any:
        """Squares."""
        return x_j * x_j


class Updated(Own):
    """A user's layer that does more."""

    def update(self, inputs: Any) -> Any:
        """Halves."""
        return inputs / 2


def hooked() -> MessagePassing:
    layer = GCNConv(3, 3)
    layer.register_message_forward_hook(lambda *_: None)
    return layer


@pytest.mark.parametrize(
    "layer",
    [
        SAGEConv(3, 3), SAGEConv(3, 3, aggr="sum"), GCNConv(3, 3), GINConv(torch.nn.Identity()),
        GraphConv(3, 3), APPNP(2, 0.1), TAGConv(3, 3), SGConv(3, 3), Own(), Own(aggr="mean"),
    ],
)  # fmt: skip
def test_layers_that_add_up_rows(layer: MessagePassing) -> None:
    assert is_linear(layer)


@pytest.mark.parametrize(
    "layer",
    [
        GATConv(3, 3), SAGEConv(3, 3, aggr="max"), SAGEConv(3, 3, aggr=["sum", "mean"]), Squares(),
        Updated(), FiLMConv(3, 3), hooked(), Own(node_dim=0), ClusterGCNConv(3, 3),
    ],
)  # fmt: skip
def test_other_layers_keep_their_messages(layer: MessagePassing) -> None:
    # ClusterGCNConv is refused for its degrees, though it adds up rows.
    assert not is_linear(layer) or isinstance(layer, ClusterGCNConv)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=40))
def test_the_fewest_rows_serve_all_edges(pairs: list[tuple[int, int]]) -> None:
    left, right = np.array(pairs).T
    by_rows = served_by_rows(left, right, 7, 5)
    num = len(set(left[by_rows])) + len(set(right[~by_rows]))
    assert num <= min(len(set(left)), len(set(right)))


@pytest.mark.parametrize("weights", [None, torch.rand(60)])
@pytest.mark.parametrize("aggr", ["sum", "mean"])
def test_products_are_the_layers_sums(weights: Any, aggr: str) -> None:
    layer = GraphConv(3, 4, aggr=aggr)
    edges, rows = torch.randint(0, 20, (2, 60)), torch.rand(20, 3, requires_grad=True)
    exchange = HaloExchange(20, np.zeros(0, np.int64), np.zeros(0, np.int64))
    given = {"x": (rows, rows), "edge_weight": weights}
    # Edges that may change are no matrix.
    assert add_up(layer, exchange, edges, edges, 20, given) is None
    for constant in (edges, weights):
        if constant is not None:
            exchange.keep(constant)
    found = add_up(layer, exchange, edges, edges, 20, given)
    expected = layer.propagate(edges, x=(rows, rows), edge_weight=weights, size=(20, 20))
    assert found is not None
    torch.testing.assert_close(found, expected)
    (own,) = torch.autograd.grad(found.square().sum(), rows)
    (theirs,) = torch.autograd.grad(expected.square().sum(), rows)
    torch.testing.assert_close(own, theirs)
