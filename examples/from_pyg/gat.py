"""GAT on Amazon-Computers with headrace: alone, with --local, or planned on several machines."""

import argparse
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GAT

import headrace

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def train_func(ctx: headrace.TrainContext) -> None:
    """Train on this trainer's share of the seeds."""
    torch.manual_seed(args.seed)
    data = ctx.graph
    train_loader = ctx.loader("train", [10, 10], batch_size=128 // ctx.world_size, seed=args.seed)
    test_loader = ctx.loader("test", [10, 10], batch_size=512)
    model = GAT(
        data.num_features, 32, num_layers=2, out_channels=data.num_classes, heads=2, dropout=0.5
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    model, optimizer = ctx.prepare(model, optimizer)
    for epoch in ctx.epochs(args.epochs):
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
        ctx.report(epoch=epoch + 1, loss=loss.item())
    ctx.report(accuracy=test(ctx, model, test_loader))


@torch.no_grad()
def test(ctx: headrace.TrainContext, model: torch.nn.Module, loader: Any) -> float:
    """Share of test nodes whose class is found."""
    model.eval()
    num_right = num_nodes = 0
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        num_right += int((out.argmax(-1) == batch.y[: batch.batch_size]).sum())
        num_nodes += batch.batch_size
    return ctx.sum(num_right) / ctx.sum(num_nodes)


if __name__ == "__main__":
    headrace.train(train_func, graph=args.data)
