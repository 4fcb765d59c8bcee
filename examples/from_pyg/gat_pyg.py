"""GAT on Amazon-Computers with PyG alone; DATA is a file that `torch.save` wrote."""

import argparse
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
data = torch.load(args.data, weights_only=False)
train_loader = NeighborLoader(
    data, [10, 10], input_nodes=data.train_mask, batch_size=128, shuffle=True
)
test_loader = NeighborLoader(data, [10, 10], input_nodes=data.test_mask, batch_size=512)
num_classes = int(data.y.max()) + 1
model = GAT(data.num_features, 32, num_layers=2, out_channels=num_classes, heads=2, dropout=0.5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)


@torch.no_grad()
def test(model: torch.nn.Module, loader: Any) -> float:
    """Share of test nodes whose class is found."""
    model.eval()
    num_right = num_nodes = 0
    for batch in loader:
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        num_right += int((out.argmax(-1) == batch.y[: batch.batch_size]).sum())
        num_nodes += batch.batch_size
    return num_right / num_nodes


for epoch in range(1, args.epochs + 1):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}  loss {loss:.4f}")
print(f"accuracy {test(model, test_loader):.4f}")
