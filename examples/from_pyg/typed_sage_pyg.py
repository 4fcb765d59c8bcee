"""GraphSAGE on IMDB with its node and edge types, with PyG alone; DATA is a `HeteroData` file."""

import argparse
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE, to_hetero

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
data = torch.load(args.data, weights_only=False)
movies = data["movie"]
train_loader = NeighborLoader(
    data, [10, 10], input_nodes=("movie", movies.train_mask), batch_size=128, shuffle=True
)
test_loader = NeighborLoader(
    data, [10, 10], input_nodes=("movie", movies.test_mask), batch_size=512
)
num_classes = int(movies.y.max()) + 1
model = GraphSAGE((-1, -1), 64, num_layers=2, out_channels=num_classes, dropout=0.5)
model = to_hetero(model, data.metadata())
with torch.no_grad():  # the numbers of features are those of the first batch
    first = next(iter(test_loader))
    model(first.x_dict, first.edge_index_dict)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)


@torch.no_grad()
def test(model: torch.nn.Module, loader: Any) -> float:
    """Share of test movies whose genre is found."""
    model.eval()
    num_right = num_nodes = 0
    for batch in loader:
        size = batch["movie"].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)["movie"][:size]
        num_right += int((out.argmax(-1) == batch["movie"].y[:size]).sum())
        num_nodes += size
    return num_right / num_nodes


for epoch in range(1, args.epochs + 1):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        size = batch["movie"].batch_size
        out = model(batch.x_dict, batch.edge_index_dict)["movie"][:size]
        loss = cross_entropy(out, batch["movie"].y[:size])
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}  loss {loss:.4f}")
print(f"accuracy {test(model, test_loader):.4f}")
