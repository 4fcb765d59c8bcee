"""Training script of the sweeps of `memory.py`: GraphSAGE with a width and a learning rate."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import headrace

NUM_EPOCHS, BATCH_SIZE = 4, 256


def train_func(ctx: headrace.TrainContext) -> None:
    """Train, and report accuracy and the sum of all parameters."""
    torch.manual_seed(0)
    model = GraphSAGE(64, int(ctx.config["width"]), num_layers=2, out_channels=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=float(ctx.config["rate"]))
    model, optimizer = ctx.prepare(model, optimizer)
    loader = ctx.loader("train", num_neighbors=[10, 5], batch_size=BATCH_SIZE)
    for _ in ctx.epochs(NUM_EPOCHS):
        num_right = num_seeds = 0
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            target = batch.y[: batch.batch_size]
            cross_entropy(out, target).backward()
            optimizer.step()
            num_right += int((out.argmax(-1) == target).sum())
            num_seeds += batch.batch_size
        ctx.report(accuracy=num_right / num_seeds)
    total = sum(p.detach().double().sum().item() for p in model.parameters())
    ctx.report(sum=float.hex(total))


if __name__ == "__main__":
    headrace.train(train_func)
