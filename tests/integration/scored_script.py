"""Trains a model of its own until remote nodes were scored twice; prints its samplers."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import MessagePassing, SAGEConv

import headrace
from headrace.training.remote_sampling.scores import explained


class MeanConv(MessagePassing):  # type: ignore[misc]
    """A layer for which PyG generates code."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__(aggr="mean")
        self.lin = torch.nn.Linear(width, out)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Average neighbours."""
        out: torch.Tensor = self.propagate(edge_index, x=self.lin(x))
        return out

    def message(self, x_j: torch.Tensor) -> torch.Tensor:
        """Send the row."""
        return x_j


class Net(torch.nn.Module):
    """A class that no other process can import."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(width, 16), MeanConv(16, num_classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Classify nodes."""
        out: torch.Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return out


def main() -> None:
    """Train for some epochs."""
    folder, scored = sys.argv[1], Path(sys.argv[2])
    graph = headrace.open_graph(folder)
    assert isinstance(graph.num_features, int)
    assert isinstance(graph.num_classes, int)
    model = Net(graph.num_features, graph.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    remote = headrace.RemoteSampling(model, partial(score, scored), every=2)
    loader = headrace.NeighborLoader(
        graph, [4, 4], "train", batch_size=64, shuffle=True, remote=remote
    )
    # The second explanation begins after the sampler has the scores of the first.
    while not scored.exists() or scored.stat().st_size < 2:
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
    sys.stdout.write(f"{loader.num_samplers} samplers\n")


def score(scored: Path, model: torch.nn.Module, graph: Any) -> Any:
    """Explain, and leave a byte in a file."""
    with scored.open("a") as file:
        file.write(".")
    return explained(model, graph)


if __name__ == "__main__":
    main()
