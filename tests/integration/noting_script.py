"""Trains with all neighbours and notes seeds and gradients of every step; run by a test."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

NUM_EPOCHS = 2


def make_model() -> Any:
    """The same in every process that has the same seed."""
    return GraphSAGE(in_channels=5, hidden_channels=8, num_layers=2, out_channels=7)


def same(sample: Any) -> Any:
    """A sample as it is."""
    return sample


def train_func(ctx: Any) -> None:
    """Learn; what was seen goes to a file."""
    torch.manual_seed(ctx.rank)  # parameters of rank 0 count
    model = make_model()
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
    # Samplers do not change samples: with that, batches are made here.
    settings = {"transform_sampler_output": same} if ctx.config.get("alone") else {}
    loader = ctx.loader("train", num_neighbors=[-1, -1], **settings)
    assert loader is ctx.loader("train")
    noted = []
    for _ in range(NUM_EPOCHS):
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            size = batch.batch_size
            loss = cross_entropy(model(batch.x, batch.edge_index)[:size], batch.y[:size])
            loss.backward()
            seeds = batch.n_id[:size].clone()
            noted.append((seeds, [p.grad.clone() for p in model.parameters()]))
            optimizer.step()
            if number + 1 == ctx.config.get("stop_after"):
                break
    checks = {"samplers": loader.num_samplers, "steps": len(loader)}
    checks["sum"] = ctx.sum(ctx.rank + 1)
    checks["mean"] = ctx.mean(ctx.rank, ctx.rank)
    checks["stops"] = [
        ctx.keep_best(model, accuracy=score + ctx.rank, patience=2)
        for score in (0.5, 0.7, 0.6, 0.2)
    ]
    val = ctx.loader("val", num_neighbors=[-1, -1])
    checks["val"] = torch.cat([batch.n_id[: batch.batch_size] for batch in val])
    torch.save((noted, checks), ctx.output / f"noted{ctx.rank}.pt")
