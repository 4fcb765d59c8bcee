"""Trainers with parts of a small graph: gradients of each model, and the bytes they have sent.

python full_graph_script.py FOLDER: forks 2, 3 and 4 trainers for the graphs in FOLDER.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import (
    APPNP,
    GAT,
    GCN,
    GIN,
    BatchNorm,
    GATv2Conv,
    GCNConv,
    GraphConv,
    GraphSAGE,
    HeteroConv,
    LayerNorm,
    MessagePassing,
    RGCNConv,
    SAGEConv,
    TAGConv,
    TransformerConv,
    to_hetero,
)
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from headrace.graph.format.partitioned_graph import open_graph
from headrace.training.ddp import share_gradients
from headrace.training.full_graph.full_graph import FullGraph
from headrace.training.full_graph.swap import FullGraphOptions
from headrace.training.models import make_model

NUM_TRAINERS = (2, 3, 4)
NUM_STEPS = 2
WIDTH, HIDDEN, NUM_CLASSES = 5, 8, 7
TYPES = {"paper": 60, "author": 40, "venue": 9}
EDGE_TYPES = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("paper", "written_by", "author"),
    ("venue", "has", "paper"),
]


class Relations(nn.Module):
    """Two RGCN layers; the relation of an edge follows from its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = RGCNConv(WIDTH, HIDDEN, 3)
        self.norm = BatchNorm(HIDDEN)
        self.second = RGCNConv(HIDDEN, NUM_CLASSES, 3, num_bases=2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
        kinds = (edge_weight * 3).long()
        x = self.norm(self.first(x, edge_index, kinds)).tanh()
        return self.second(x, edge_index, kinds)


class Mixed(nn.Module):
    """Layers that pass other arguments: weights, attention, powers of the adjacency, maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.gcn = GCNConv(WIDTH, HIDDEN, improved=True, cached=True)
        self.norm = nn.BatchNorm1d(HIDDEN, momentum=None)
        self.gat = GATv2Conv(HIDDEN, HIDDEN // 2, heads=2)
        self.layer_norm = LayerNorm(HIDDEN, mode="node")
        self.attention = TransformerConv(HIDDEN, NUM_CLASSES)
        self.powers = APPNP(2, 0.1)
        self.largest = SAGEConv(NUM_CLASSES, NUM_CLASSES, aggr="max")

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
        x = self.norm(self.gcn(x, edge_index, edge_weight)).tanh()
        x = self.layer_norm(self.gat(x, edge_index))
        x = self.powers(self.attention(x, edge_index), edge_index)
        return self.largest(x, edge_index)


class Doubled(MessagePassing):  # type: ignore[misc]
    """A user's layer that adds up rows."""

    def message(self, x_j: Tensor) -> Tensor:
        """The row of the source."""
        return x_j

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        return self.propagate(edge_index, x=2 * x) / 8


class Sums(nn.Module):
    """Layers that add up rows, with weights of the batch, powers, and of a user."""

    def __init__(self) -> None:
        super().__init__()
        self.weighted = GraphConv(WIDTH, HIDDEN, aggr="mean")
        self.powers = TAGConv(HIDDEN, HIDDEN, K=2)
        self.doubled = Doubled()
        self.last = GCNConv(HIDDEN, NUM_CLASSES, add_self_loops=False)
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Any:
        x = self.weighted(x, edge_index, edge_weight).tanh()
        x = self.doubled(self.powers(x, edge_index, edge_weight).tanh(), edge_index)
        # Weights that are learnt are no constants of a product.
        return self.last(x, edge_index, edge_weight * self.scale)


class Branches(nn.Module):
    """Two layers with the same edges, whose gradients are on their way at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GCNConv(WIDTH, HIDDEN)
        self.both = nn.ModuleList(GCNConv(HIDDEN, NUM_CLASSES, bias=False) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        x = self.first(x, edge_index)
        one, two = self.both
        return one(x.tanh(), edge_index) - two(x.sin(), edge_index)


class Normed(nn.Module):
    """A model that normalises edges itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([GraphConv(WIDTH, HIDDEN), GraphConv(HIDDEN, NUM_CLASSES)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        edges, weights = gcn_norm(edge_index, num_nodes=x.size(0))
        first, second = self.layers
        return second(first(x, edges, weights).tanh(), edges, weights)


class Typed(nn.Module):
    """A model of a graph with types, of which papers are classified."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *given: Any) -> Any:
        return self.model(*given)["paper"]


class Convolutions(nn.Module):
    """Two HeteroConv layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            HeteroConv(
                {
                    each: GCNConv(width, HIDDEN)
                    if each[0] == each[2]
                    else SAGEConv((width, width), HIDDEN)
                    for each in EDGE_TYPES
                }
            )
            for width in (WIDTH, HIDDEN)
        )
        self.norm = nn.BatchNorm1d(HIDDEN)

    def forward(self, rows: Any, edges: Any) -> Any:
        first, second = self.layers
        rows = {name: self.norm(each).tanh() for name, each in first(rows, edges).items()}
        return second(rows, edges)


def _with_norms(make: Any, **settings: Any) -> nn.Module:
    model: nn.Module = make(WIDTH, HIDDEN, 2, NUM_CLASSES, norm="BatchNorm", act="tanh", **settings)
    return model


def _to_hetero() -> nn.Module:
    sage = GraphSAGE(WIDTH, HIDDEN, 2, NUM_CLASSES, act="tanh")
    model: nn.Module = to_hetero(sage, (list(TYPES), EDGE_TYPES))
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gcn": lambda: _with_norms(GCN),
    "sage": lambda: _with_norms(GraphSAGE),
    "gat": lambda: _with_norms(GAT, heads=2),
    "gin": lambda: _with_norms(GIN),
    "rgcn": Relations,
    "mixed": Mixed,
    "sums": Sums,
    "gcn in groups": lambda: GCN(WIDTH, HIDDEN, 3, NUM_CLASSES, act="tanh"),
    "sage in groups": lambda: GraphSAGE(WIDTH, HIDDEN, 3, NUM_CLASSES, act="relu"),
    "branches in groups": Branches,
    "normed in groups": Normed,
    "gin in groups": lambda: GIN(WIDTH, HIDDEN, 2, NUM_CLASSES),
    "gat in bins": lambda: _with_norms(GAT, heads=2),
    "mixed in bins": Mixed,
    "sage in groups, in matchings": lambda: GraphSAGE(WIDTH, HIDDEN, 3, NUM_CLASSES, act="relu"),
    "gat in matchings": lambda: _with_norms(GAT, heads=2),
    "gcn by features": lambda: GCN(WIDTH, 3, 3, NUM_CLASSES, act="tanh"),
    "sage by features": lambda: _with_norms(GraphSAGE),
    "gin by features": lambda: _with_norms(GIN),
    "sums by features": Sums,
    "gcn as planned": lambda: _with_norms(GCN),
    "branches by either": Branches,
    "sage by features, in matchings": lambda: GraphSAGE(WIDTH, HIDDEN, 3, NUM_CLASSES),
    "stale sage": lambda: _with_norms(GraphSAGE),
    "stale gat": lambda: _with_norms(GAT, heads=2),
    "int8 gcn": lambda: _with_norms(GCN),
    "int4 gat": lambda: _with_norms(GAT, heads=2),
}
OPTIONS: dict[str, FullGraphOptions] = {
    "gat in bins": {"bins": 3},
    "mixed in bins": {"bins": 4},
    "sage in groups, in matchings": {"matchings": True},
    "gat in matchings": {"matchings": True},
    "gcn by features": {"parallelism": "features"},
    "sage by features": {"parallelism": "features"},
    "gin by features": {"parallelism": "features"},
    "sums by features": {"parallelism": "features"},
    "branches by either": {"parallelism": "auto"},
    "sage by features, in matchings": {"parallelism": "features", "matchings": True},
    "convolutions by features": {"parallelism": "features"},
    "stale sage": {"is_stale": True},
    "stale gat": {"is_stale": True},
    "int8 gcn": {"rounding": "int8"},
    "int4 gat": {"rounding": "int4"},
}
TYPED_MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": lambda: Typed(Convolutions()),
    "convolutions by features": lambda: Typed(Convolutions()),
    "to_hetero": lambda: Typed(_to_hetero()),
    "joined": lambda: Typed(
        make_model(
            "rgcn",
            dict.fromkeys(TYPES, WIDTH),
            HIDDEN,
            NUM_CLASSES,
            dropout=0.0,
            edge_types=EDGE_TYPES,
        )
    ),
}
WEIGHTED = (
    "rgcn", "mixed", "mixed in bins", "sums", "sums by features",
)  # fmt: skip


def model_of(name: str) -> nn.Module:
    """The same model in every process."""
    torch.manual_seed(0)
    return (MODELS | TYPED_MODELS)[name]()


def inputs_of(name: str, batch: Any) -> tuple[Any, Any, Any]:
    """A model's inputs, labels and training nodes."""
    if name in TYPED_MODELS:
        papers = batch["paper"]
        return (batch.x_dict, batch.edge_index_dict), papers.y, papers.train_mask
    more = (batch.edge_weight,) if name in WEIGHTED else ()
    return (batch.x, batch.edge_index, *more), batch.y, batch.train_mask


def learn(model: nn.Module, name: str, batch: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of the last step, and buffers such as running means."""
    inputs, labels, mask = inputs_of(name, batch)
    for _ in range(NUM_STEPS):
        model.zero_grad()
        loss = cross_entropy(model(*inputs)[mask], labels[mask])
        if name in MODELS:
            # A term without data is the same for all trainers.
            norms = [each.square().sum() for each in model.parameters()]
            loss = loss + 0.01 * torch.stack(norms).sum()
        loss.backward()
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return gradients, list(model.buffers())


def train(
    made: dict[str, nn.Module], rank: int, num_trainers: int, port: int, folder: Path
) -> None:
    """Train all models as one of the trainers."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=num_trainers)
    found = {}
    for graph, models in (("graph", MODELS), ("typed", TYPED_MODELS)):
        for name in models:
            options = OPTIONS.get(name, {})
            data = FullGraph(open_graph(folder / graph), dist.group.WORLD, **options)
            if name == "gcn as planned":
                data.follow([("", 4 * HIDDEN)])
            model = made[name]
            data.wrap(model)
            # Not all layers of a graph with types lead to papers.
            settings = {"find_unused_parameters": name in TYPED_MODELS}
            model = share_gradients(model, torch.device("cpu"), **settings)
            found[name] = *learn(model, name, *data), data.sent_bytes
            if options.get("parallelism") != "auto":
                assert (data.halos.groups is not None) == ("in groups" in name), name
    torch.save(found, folder / f"found-{num_trainers}-{rank}.pt")
    dist.barrier()
    # Without destroying the group: see `leave_group`.
    time.sleep(0.1)
    os._exit(0)


def main(folder: Path) -> int:
    """Fork trainers, as imports take longer than they do; return the number of failed ones."""
    torch.set_num_threads(1)
    failed, made = 0, {name: model_of(name) for name in MODELS | TYPED_MODELS}
    # Loads compiled code.
    FullGraph(open_graph(folder / "graph"))
    for num_trainers in NUM_TRAINERS:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        children = []
        for rank in range(num_trainers):
            child = os.fork()
            if not child:
                train(made, rank, num_trainers, port, folder)
            children.append(child)
        failed += sum(os.waitpid(child, 0)[1] != 0 for child in children)
    return failed


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
