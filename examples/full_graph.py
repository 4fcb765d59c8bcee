"""GCN on Pubmed with all nodes and edges in every step: alone, on one machine or on many.

python examples/full_graph.py PARTS                                            # alone
headrace run --local --graph PARTS --trainers 2 examples/full_graph.py         # two trainers
headrace run --plan plan.json --graph PARTS examples/full_graph.py             # as planned
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GCN

import headrace


def train_func(ctx: headrace.TrainContext) -> float:
    """Train on this trainer's part of the graph, and return the accuracy of all."""
    torch.manual_seed(ctx.config.get("seed", 0))
    data = ctx.full_graph()
    model = GCN(
        ctx.graph.num_features,
        hidden_channels=64,
        num_layers=2,
        out_channels=ctx.graph.num_classes,
        dropout=0.5,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    model, optimizer = ctx.prepare(model, optimizer, full_graph=data)

    accuracy = 0.0
    for epoch in ctx.epochs(ctx.config.get("epochs", 100)):
        model.train()
        for batch in data:
            mask = batch.train_mask
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)
            loss = cross_entropy(out[mask], batch.y[mask])
            loss.backward()
            optimizer.step()
            # A part without training nodes has no loss, but its nodes are neighbours of others.
            mean = ctx.mean(loss.item(), weight=int(mask.sum()))
            if epoch % 10 == 9:
                accuracy = evaluate(ctx, model, batch)
                ctx.report(epoch=epoch + 1, loss=mean, accuracy=accuracy)
    return accuracy


@torch.no_grad()
def evaluate(ctx: headrace.TrainContext, model: torch.nn.Module, batch: Data) -> float:
    """Share of all trainers' test nodes whose class is found."""
    model.eval()
    mask = batch.test_mask
    right = model(batch.x, batch.edge_index).argmax(-1) == batch.y
    return ctx.sum(right[mask].sum()) / ctx.sum(mask.sum())


if __name__ == "__main__":
    headrace.train(train_func, graph=sys.argv[1] if len(sys.argv) > 1 else None)
