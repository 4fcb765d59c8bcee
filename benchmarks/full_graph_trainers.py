"""Models, graphs and forked trainers of `full_graph.py`."""

from __future__ import annotations

import copy
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GAT, GCN, GIN, BatchNorm, GraphSAGE, RGCNConv

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import headrace
from benchmarks.batch_sources import DATA
from benchmarks.traffic import NODE, source_of
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.schema import Column
from headrace.training.ddp import share_gradients
from headrace.training.full_graph.full_graph import FullGraph
from headrace.training.full_graph.swap import FullGraphOptions
from headrace.training.models import make_model

HIDDEN, NUM_RELATIONS, SEED_TYPE = 64, 3, "movie"
BASIC = {"GCN": GCN, "SAGE": GraphSAGE, "GAT": GAT, "GIN": GIN}


class Relations(nn.Module):
    """Two layers of RGCNConv."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.first = RGCNConv(width, HIDDEN, NUM_RELATIONS)
        self.norm = BatchNorm(HIDDEN)
        self.second = RGCNConv(HIDDEN, num_classes, NUM_RELATIONS)

    def forward(self, x: Any, edge_index: Any, edge_type: Any) -> Any:
        """Scores of the nodes."""
        x = self.norm(self.first(x, edge_index, edge_type)).relu()
        return self.second(x, edge_index, edge_type)


class SeedRows(nn.Module):
    """The rows of one node type of a model of a typed graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        """Scores of the nodes of this type."""
        return self.model(x_dict, edge_index_dict)[SEED_TYPE]


def make(graph: PartitionedGraph, name: str, seed: int, dropout: float = 0.0) -> nn.Module:
    """The same model in every process."""
    torch.manual_seed(seed)
    if name == "typed RGCN":
        num_classes = graph[SEED_TYPE].num_classes
        inner = make_model(
            "rgcn",
            graph.num_features,
            HIDDEN,
            num_classes,
            dropout=dropout,
            edge_types=graph.edge_types,
        )
        return SeedRows(inner)
    width, num_classes = width_of(graph), graph.num_classes
    if name == "RGCN":
        return Relations(width, num_classes)
    norm = None if dropout else "BatchNorm"
    made: nn.Module = BASIC[name](width, HIDDEN, 2, num_classes, norm=norm, dropout=dropout)
    return made


def width_of(graph: PartitionedGraph) -> int:
    """Features per node."""
    (width,) = graph.part(0).column_info(NODE, "x").shape
    return width


def step(model: nn.Module, name: str, batch: Any) -> Any:
    """Gradients of one step; returns the loss."""
    model.zero_grad()
    if name == "typed RGCN":
        seeds = batch[SEED_TYPE]
        out = model(batch.x_dict, batch.edge_index_dict)
    else:
        seeds = batch
        more = (batch.edge_type,) if name == "RGCN" else ()
        out = model(batch.x, batch.edge_index, *more)
    loss = cross_entropy(out[seeds.train_mask], seeds.y[seeds.train_mask])
    loss.backward()
    return loss


def in_double(batch: Any) -> Any:
    """A batch with features in double precision."""
    batch = copy.copy(batch)
    for store in batch.node_stores:
        store.x = store.x.double()
    return batch


def gradients_of(model: nn.Module, name: str, batch: Any) -> torch.Tensor:
    """All gradients of the third step, without updates; in double precision if the batch is."""
    if batch.node_stores[0].x.dtype == torch.float64:
        model.double()
    for _ in range(3):
        step(model, name, batch)
    found = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
    return torch.cat(found)


@torch.no_grad()
def right_of(model: nn.Module, name: str, batch: Any) -> np.ndarray:
    """Right answers and number of test nodes."""
    model.eval()
    is_typed = name == "typed RGCN"
    seeds = batch[SEED_TYPE] if is_typed else batch
    out = (
        model(batch.x_dict, batch.edge_index_dict) if is_typed else model(batch.x, batch.edge_index)
    )
    right, mask = out.argmax(-1) == seeds.y, seeds.test_mask
    return np.array([int(right[mask].sum()), int(mask.sum())])


def learn(
    model: nn.Module, batch: Any, num_epochs: int, seed: int, name: str = "GCN"
) -> np.ndarray:
    """Train a model, and count its right answers."""
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(num_epochs):
        model.train()
        step(model, name, batch)
        optimizer.step()
    return right_of(model, name, batch)


Work = Callable[[FullGraph], Any]


def in_trainers(
    graph: PartitionedGraph, num: int, work: Work, **options: Unpack[FullGraphOptions]
) -> list[Any]:
    """Results of trainers that do the same on their parts."""
    with (
        tempfile.TemporaryDirectory(prefix="hr-") as folder,
        socket.create_server(("127.0.0.1", 0)) as free,
    ):
        port = free.getsockname()[1]
        free.close()
        children = []
        for rank in range(num):
            child = os.fork()
            if not child:
                _work(graph, rank, num, port, work, Path(folder), options)
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        if any(codes):
            raise RuntimeError(f"trainers ended with {codes}")
        return [torch.load(Path(folder) / str(rank), weights_only=False) for rank in range(num)]


def _work(
    graph: PartitionedGraph,
    rank: int,
    num: int,
    port: int,
    work: Work,
    folder: Path,
    options: FullGraphOptions,
) -> None:
    code = 1
    try:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        os.environ.update(place)
        dist.init_process_group("gloo", rank=rank, world_size=num)
        torch.save(work(FullGraph(graph, dist.group.WORLD, **options)), folder / str(rank))
        dist.barrier()
        time.sleep(0.1)
        code = 0
    finally:
        os._exit(code)


def shared(model: nn.Module, data: FullGraph) -> nn.Module:
    """A model that trains with all trainers."""
    data.wrap(model)
    return share_gradients(model, torch.device("cpu"))


def graph_of(name: str, num_parts: int, scratch: Path) -> PartitionedGraph:
    """A partitioned graph, with a random relation of every edge."""
    folder = scratch / f"{name}-{num_parts}"
    if folder.exists():
        return headrace.open_graph(folder)
    if name == "imdb":
        return headrace.partition(str(DATA / "gds_hetero" / "imdb"), folder, parts=num_parts)
    source = source_of(name)
    (edges,) = source.edges
    kinds = np.random.default_rng(1).integers(0, NUM_RELATIONS, edges.num_edges)
    table = replace(edges, columns=(Column.of("edge_type", kinds),))
    return headrace.partition(replace(source, edges=(table,)), folder, parts=num_parts)


def alone(graph: PartitionedGraph) -> Any:
    """The whole graph as PyG's data."""
    (batch,) = FullGraph(graph)
    return batch
