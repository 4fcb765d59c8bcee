"""Attention on a whole graph, for `full_graph.py`: its loss and time.

python full_graph_memory.py GRAPH BINS EPOCHS
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GAT

from headrace.graph.format.partitioned_graph import open_graph
from headrace.training.full_graph.full_graph import FullGraph


def main(folder: str, bins: int, epochs: int) -> None:
    """Train, and print one line of JSON."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    graph = open_graph(folder)
    data = FullGraph(graph, bins=bins)
    model = GAT(graph.num_features, 128, 2, graph.num_classes, heads=4)
    data.wrap(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss, began_s = torch.zeros(()), time.perf_counter()
    for _ in range(epochs):
        for batch in data:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)
            loss = cross_entropy(out[batch.train_mask], batch.y[batch.train_mask])
            loss.backward()
            optimizer.step()
    found = {
        "loss": float(loss.detach()),
        "epoch_s": (time.perf_counter() - began_s) / max(epochs, 1),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
