"""Attention on the full graph with the bins of the plan; notes what it has learnt."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GAT

NUM_EPOCHS = 3


def make() -> tuple[Any, Any]:
    """A model and its optimizer."""
    torch.manual_seed(0)
    model = GAT(5, 16, 2, 7, heads=2)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def step(model: Any, optimizer: Any, batch: Any) -> None:
    """Train on all nodes of the training split."""
    optimizer.zero_grad()
    out = model(batch.x, batch.edge_index)
    cross_entropy(out[batch.train_mask], batch.y[batch.train_mask]).backward()
    optimizer.step()


def train_func(ctx: Any) -> None:
    """Train and save the parameters."""
    data = ctx.full_graph()
    model, optimizer = make()
    given, optimizer = ctx.prepare(model, optimizer, full_graph=data)
    for _ in ctx.epochs(NUM_EPOCHS):
        for batch in data:
            step(given, optimizer, batch)
    # A trainer with parameter servers gets the last parameters when it uses them.
    given(batch.x, batch.edge_index)
    noted = {name: value.detach() for name, value in model.named_parameters()}
    if ctx.rank == 0:
        torch.save(
            (noted, data.halos.num_bins, data.part.num_nodes("node")), ctx.output / "learnt.pt"
        )
