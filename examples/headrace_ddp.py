"""GraphSAGE on Pubmed by a training function: alone, on one machine or on many.

python examples/headrace_ddp.py PARTS                                      # alone
headrace run --local --graph PARTS examples/headrace_ddp.py                # stores and samplers
headrace run --plan plan.json --graph PARTS examples/headrace_ddp.py       # as planned
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import headrace


def train_func(ctx: headrace.TrainContext) -> None:
    """Train until validation does not get better, and keep the best model."""
    torch.manual_seed(ctx.config.get("seed", 0))
    model = GraphSAGE(500, hidden_channels=64, num_layers=2, out_channels=3, dropout=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model, optimizer = ctx.prepare(model, optimizer)
    # A plan says how large batches are; where there is none, this does.
    train_loader = ctx.loader("train", num_neighbors=[10, 10], batch_size=32)
    val_loader = ctx.loader("val", num_neighbors=[10, 10], batch_size=256)

    for epoch in ctx.epochs(ctx.config.get("epochs", 20)):
        model.train()
        for batch in train_loader:
            batch = batch.to(ctx.device)
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
        accuracy = evaluate(ctx, model, val_loader)
        ctx.report(epoch=epoch + 1, loss=loss.item(), accuracy=accuracy)
        if ctx.keep_best(model, accuracy=accuracy, patience=5):
            break


@torch.no_grad()
def evaluate(
    ctx: headrace.TrainContext, model: torch.nn.Module, loader: headrace.NeighborLoader
) -> float:
    """Share of all trainers' nodes whose class is found."""
    model.eval()
    num_right = num_nodes = 0
    for batch in loader:
        batch = batch.to(ctx.device)
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        num_right += int((out.argmax(-1) == batch.y[: batch.batch_size]).sum())
        num_nodes += batch.batch_size
    return ctx.sum(num_right) / ctx.sum(num_nodes)


if __name__ == "__main__":
    headrace.train(train_func, graph=sys.argv[1] if len(sys.argv) > 1 else None)
