"""Links of WN18RR with PyG alone; DATA is a file of the graph, `links.pt` has links by split."""

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torch_geometric.loader import LinkNeighborLoader
from torch_geometric.nn import GraphSAGE

parser = argparse.ArgumentParser()
parser.add_argument("data")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()


class Model(torch.nn.Module):
    """A learnt row per entity, and GraphSAGE over them."""

    def __init__(self, num_nodes: int) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(num_nodes, 64)
        self.gnn = GraphSAGE(64, 64, num_layers=2, dropout=0.2)

    def forward(self, batch: Any) -> torch.Tensor:
        """Scores of the batch's links."""
        out = self.gnn(self.rows(batch.n_id), batch.edge_index)
        sources, targets = batch.edge_label_index
        scores: torch.Tensor = (out[sources] * out[targets]).sum(-1)
        return scores


torch.manual_seed(args.seed)
data = torch.load(args.data, weights_only=False)
links = torch.load(Path(__file__).with_name("links.pt"))
train_loader = LinkNeighborLoader(
    data,
    [10, 10],
    edge_label_index=links["train"],
    neg_sampling="binary",
    batch_size=1024,
    shuffle=True,
)
test_loader = LinkNeighborLoader(
    data, [10, 10], edge_label_index=links["test"], neg_sampling="binary", batch_size=1024
)
model = Model(data.num_nodes)
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)


@torch.no_grad()
def test(model: torch.nn.Module, loader: Any) -> float:
    """Area under the ROC curve."""
    model.eval()
    rows = [(model(batch), batch.edge_label) for batch in loader]
    order = torch.cat([scores for scores, _ in rows]).argsort()
    labels = torch.cat([labels for _, labels in rows])[order]
    places = torch.arange(1, len(labels) + 1)[labels > 0].double()
    num_true = len(places)
    return float((places.mean() - (num_true + 1) / 2) / (len(labels) - num_true))


for epoch in range(1, args.epochs + 1):
    model.train()
    for batch in train_loader:
        optimizer.zero_grad()
        loss = binary_cross_entropy_with_logits(model(batch), batch.edge_label.float())
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}  loss {loss:.4f}")
print(f"auc {test(model, test_loader):.4f}")
