"""Full-graph training whose second trainer kills itself once, if `config` names a file to leave."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GCN

import headrace

NUM_EPOCHS, KILLED_AT = 12, 7


def train_func(ctx: headrace.TrainContext) -> None:
    """Train with dropout and batch normalisation; rank 0 saves the model."""
    torch.manual_seed(ctx.rank)
    data = ctx.full_graph()
    model = GCN(ctx.graph.num_features, 8, 2, ctx.graph.num_classes, dropout=0.5, norm="BatchNorm")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = ctx.prepare(model, optimizer, full_graph=data)
    mark = Path(ctx.config.get("mark", os.devnull))
    rank, kill = ctx.config.get("rank", 1), ctx.config.get("kill", KILLED_AT)
    for epoch in ctx.epochs(ctx.config.get("epochs", NUM_EPOCHS)):
        for batch in data:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)
            cross_entropy(out[batch.train_mask], batch.y[batch.train_mask]).backward()
            if ctx.rank == rank and epoch == kill and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
    if ctx.rank == 0:
        torch.save(model.state_dict(), ctx.output / "learnt.pt")
