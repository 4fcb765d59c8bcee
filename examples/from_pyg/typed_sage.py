"""GraphSAGE on IMDB with its types, with headrace: alone, with --local, or on several machines."""

import argparse
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE, to_hetero

import headrace

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


def train_func(ctx: headrace.TrainContext) -> None:
    """Train on this trainer's share of the movies."""
    torch.manual_seed(args.seed)
    data = ctx.graph
    movies = data["movie"]
    train_loader = ctx.loader(
        "train", [10, 10], node_type="movie", batch_size=128 // ctx.world_size, seed=args.seed
    )
    test_loader = ctx.loader("test", [10, 10], node_type="movie", batch_size=512)
    model = GraphSAGE((-1, -1), 64, num_layers=2, out_channels=movies.num_classes, dropout=0.5)
    model = to_hetero(model, data.metadata())
    with torch.no_grad():  # the numbers of features are those of the first batch
        first = next(iter(test_loader))
        model(first.x_dict, first.edge_index_dict)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    # The last layer computes rows of all types, and the loss uses those of movies.
    model, optimizer = ctx.prepare(model, optimizer, find_unused_parameters=True)
    for epoch in ctx.epochs(args.epochs):
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            size = batch["movie"].batch_size
            out = model(batch.x_dict, batch.edge_index_dict)["movie"][:size]
            loss = cross_entropy(out, batch["movie"].y[:size])
            loss.backward()
            optimizer.step()
        ctx.report(epoch=epoch + 1, loss=loss.item())
    ctx.report(accuracy=test(ctx, model, test_loader))


@torch.no_grad()
def test(ctx: headrace.TrainContext, model: torch.nn.Module, loader: Any) -> float:
    """Share of test movies whose genre is found."""
    model.eval()
    num_right = num_nodes = 0
    for batch in loader:
        size = batch["movie"].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)["movie"][:size]
        num_right += int((out.argmax(-1) == batch["movie"].y[:size]).sum())
        num_nodes += size
    return ctx.sum(num_right) / ctx.sum(num_nodes)


if __name__ == "__main__":
    headrace.train(train_func, graph=args.data)
