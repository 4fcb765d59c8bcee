"""Models that cannot train on parts of a graph are refused by name."""

from __future__ import annotations

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch import nn  # noqa: E402
from torch_geometric.nn import (  # noqa: E402
    GCN,
    ChebConv,
    GCNConv,
    GraphNorm,
    LayerNorm,
    MeanAggregation,
    SAGEConv,
    TopKPooling,
    global_mean_pool,
)

from headrace.core.errors import SpecError  # noqa: E402
from headrace.training.full_graph.refusals import check_model  # noqa: E402


class _Pooled(nn.Module):
    def forward(self, x: Any) -> Any:
        return global_mean_pool(x, None)


def _compiled() -> Any:
    # Importing torch._dynamo takes seconds.
    return type("OptimizedModule", (nn.Module,), {"__module__": "torch._dynamo.eval_frame"})()


def _cached() -> Any:
    layer = GCNConv(2, 2, cached=True)
    layer(torch.ones(2, 2), torch.tensor([[0], [1]]))
    return layer


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ChebConv(2, 2, 3), "ChebConv (1) .* degrees of sources"),
        (lambda: SAGEConv(2, 2, flow="target_to_source"), r"SAGEConv \(1\) .* target_to_source"),
        (lambda: SAGEConv(2, 2, decomposed_layers=2), "decomposed"),
        (_cached, "cached another graph"),
        (lambda: GraphNorm(2), "GraphNorm .* all nodes at once"),
        (lambda: LayerNorm(2), "LayerNorm .* all nodes at once"),
        (lambda: GCN(2, 2, 2, norm="PairNorm"), r"PairNorm \(1.norms.0\)"),
        (lambda: TopKPooling(2), "TopKPooling .* all nodes"),
        (MeanAggregation, "MeanAggregation .* outside of a layer"),
        (_Pooled, "_Pooled .* global_mean_pool"),
        (_compiled, "OptimizedModule .* compiled"),
        (lambda: torch.jit.script(nn.Linear(2, 2)), "TorchScript"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_part_that_needs_the_whole_graph_is_named(make: Any, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_model(nn.Sequential(nn.Linear(2, 2), make()))
    assert re.search(says.replace("(1) ", r"\(1\) "), caught.value.problem)
    assert caught.value.remedy


def test_layers_of_neighbours_are_not_refused() -> None:
    check_model(GCN(2, 2, 2, norm="BatchNorm", jk="cat"))
    check_model(nn.Sequential(SAGEConv(2, 2, aggr=["mean", "max"]), LayerNorm(2, mode="node")))
