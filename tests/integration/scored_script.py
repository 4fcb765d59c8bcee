"""Trains a model of its own with scores of remote nodes; prints how many batches it had."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import SAGEConv

import headrace


class Net(torch.nn.Module):
    """A class that no other process can import."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(width, 16), SAGEConv(16, num_classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Classify nodes."""
        out: torch.Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return out


def main() -> None:
    """Train for some epochs."""
    folder, score, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    graph = headrace.open_graph(folder)
    assert isinstance(graph.num_features, int)
    assert isinstance(graph.num_classes, int)
    model = Net(graph.num_features, graph.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    remote = headrace.RemoteSampling(model, wrong if score == "wrong" else score, every=2)
    loader = headrace.NeighborLoader(
        graph, [4, 4], "train", batch_size=64, shuffle=True, remote=remote
    )
    num_batches = 0
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
            num_batches += 1
    sys.stdout.write(f"{num_batches} batches, {loader.num_samplers} samplers\n")


def wrong(_model: torch.nn.Module, _graph: Any) -> Any:
    """Fail."""
    raise RuntimeError("these scores cannot be computed")


if __name__ == "__main__":
    main()
