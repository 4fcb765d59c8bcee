"""Models and batches of `memory.py`: layers of PyG, and a user's own model over edges."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, relu
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import degree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.batch_sources import DATA

NUM_RELATIONS = 8
GRAPHS = {
    "pubmed": DATA / "planetoid" / "pubmed.npz",
    "coauthor_cs": DATA / "coauthor_cs",
    "coauthor_physics": DATA / "coauthor_physics",
    "debian": DATA / "debian_bookworm",
    "amazon_computers": DATA / "amazon_computers",
}
MORE_GRAPHS = {
    "amazon_photo": DATA / "amazon_photo",
    "cora": DATA / "planetoid" / "cora.npz",
    "generated": "generated:nodes=1e5,edges=2e6,features=128",
}


@dataclass(frozen=True)
class Setting:
    """A model, its width and depth, and how batches are sampled."""

    model: str = "SAGE"
    width: int = 128
    layers: int = 2
    batch_size: int = 512
    fanout: int = 10
    heads: int = 4

    @property
    def fanouts(self) -> list[int]:
        """Neighbours per hop; fewer in later ones."""
        return [max(2, self.fanout // 2**hop) for hop in range(self.layers)]


class EdgeModel(pyg.MessagePassing):  # type: ignore[misc]
    """Messages from both ends of an edge, as users write them."""

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__(aggr="max")
        self.mlp = nn.Sequential(
            nn.Linear(2 * num_in, num_out), nn.ReLU(), nn.Linear(num_out, num_out)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Aggregate messages of all edges."""
        out: Tensor = self.propagate(edge_index, x=x)
        return out

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        """Message of an edge."""
        out: Tensor = self.mlp(torch.cat([x_i, x_j - x_i], dim=-1))
        return out


class Model(nn.Module):
    """Layers of one kind with an activation and dropout between them."""

    def __init__(self, setting: Setting, num_in: int, num_out: int, degrees: Tensor) -> None:
        super().__init__()
        self.is_typed = setting.model == "RGCN"
        widths = [num_in, *[setting.width] * (setting.layers - 1), num_out]
        self.layers = nn.ModuleList(
            _layer(setting, one, two, degrees) for one, two in pairwise(widths)
        )

    def forward(self, batch: Any) -> Tensor:
        """Scores of all nodes of a batch."""
        x: Tensor = batch.x
        for number, layer in enumerate(self.layers):
            more = (batch.edge_type,) if self.is_typed else ()
            x = layer(x, batch.edge_index, *more)
            if number < len(self.layers) - 1:
                x = dropout(relu(x), 0.5, self.training)
        return x


def _layer(setting: Setting, num_in: int, num_out: int, degrees: Tensor) -> nn.Module:
    heads = setting.heads
    makers: dict[str, Callable[[], nn.Module]] = {
        "GCN": lambda: pyg.GCNConv(num_in, num_out),
        "SAGE": lambda: pyg.SAGEConv(num_in, num_out),
        "GAT": lambda: pyg.GATConv(num_in, num_out, heads, concat=False),
        "GATv2": lambda: pyg.GATv2Conv(num_in, num_out, heads, concat=False),
        "GIN": lambda: pyg.GINConv(pyg.MLP([num_in, num_out, num_out], norm=None)),
        "RGCN": lambda: pyg.RGCNConv(num_in, num_out, NUM_RELATIONS),
        "PNA": lambda: pyg.PNAConv(
            num_in, num_out, ["mean", "min", "max", "std"], ["identity", "amplification"], degrees
        ),
        "Transformer": lambda: pyg.TransformerConv(num_in, num_out, heads, concat=False),
        "edge": lambda: EdgeModel(num_in, num_out),
    }
    return makers[setting.model]()


class Sampled:
    """A graph in memory, and batches of it."""

    def __init__(self, name: str) -> None:
        from headrace.graph.sources.resolve import open_source

        source = open_source(str({**GRAPHS, **MORE_GRAPHS}[name]), 0)
        table = source.nodes[0]
        columns = {c.name: np.array(c.read(0, table.num_nodes)) for c in table.columns}
        ends = [np.stack(pair) for edges in source.edges for pair in edges.chunks()]
        edge_index = torch.from_numpy(np.concatenate(ends, axis=1).astype(np.int64))
        self.data = Data(
            x=torch.from_numpy(columns["x"]).float(),
            y=torch.from_numpy(columns["y"]).long(),
            edge_index=edge_index,
        )
        counts = torch.bincount(degree(edge_index[1], table.num_nodes).long().clamp(max=1000))
        self.degrees = counts
        self.num_classes = int(self.data.y.max()) + 1

    @property
    def num_features(self) -> int:
        """Width of a row."""
        return int(self.data.x.shape[1])

    def batches(self, setting: Setting, seed: int = 0) -> Iterator[Any]:
        """Batches of shuffled seeds, epoch after epoch."""
        from headrace import NeighborLoader

        loader = NeighborLoader(
            self.data,
            setting.fanouts,
            batch_size=min(setting.batch_size, int(self.data.num_nodes)),
            shuffle=True,
            seed=seed,
        )
        while True:
            for batch in loader:
                source, target = batch.n_id[batch.edge_index]
                batch.edge_type = (source * 7 + target) % NUM_RELATIONS
                yield batch

    def step(self, setting: Setting) -> tuple[nn.Module, Callable[[Any], float]]:
        """A model and its training step."""
        torch.manual_seed(0)
        model = Model(setting, self.num_features, self.num_classes, self.degrees)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

        def step(batch: Any) -> float:
            optimizer.zero_grad()
            out = model(batch)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            return float(loss)

        return model, step
