"""GraphSAGE on Pubmed with headrace; DATA is a folder of parts."""

import argparse

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

import headrace
from headrace import NeighborLoader

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
data = headrace.open_graph(args.data)
settings = {"num_neighbors": [10, 10], "batch_size": 32}
train_loader = NeighborLoader(data, input_nodes="train", shuffle=True, **settings)
test_loader = NeighborLoader(data, input_nodes="test", **settings)

model = GraphSAGE(in_channels=500, hidden_channels=64, num_layers=2, out_channels=3, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)


def train() -> float:
    """Go through all training nodes once; the mean loss."""
    model.train()
    total = 0.0
    for batch in train_loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(train_loader)


@torch.no_grad()
def test() -> float:
    """Share of test nodes whose class is found."""
    model.eval()
    num_right = num_nodes = 0
    for batch in test_loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        num_right += int((out.argmax(-1) == batch.y[: batch.batch_size]).sum())
        num_nodes += batch.batch_size
    return num_right / num_nodes


for epoch in range(1, args.epochs + 1):
    loss = train()
    headrace.report(epoch=epoch, loss=loss, accuracy=test())
