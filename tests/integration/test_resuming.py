"""Three trainers stop after the same step, whenever each is told, and go on to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from headrace.training.checkpoint_files import load, newest_whole  # noqa: E402
from tests.integration.plain_cluster import PlainCluster  # noqa: E402
from tests.unit.graph.small_graphs import homogeneous, write  # noqa: E402

pytestmark = pytest.mark.integration

MIX = np.array([[2.0, 1.0], [5.0, 4.0], [3.0, 4.0]])
SCRIPT = """
import signal

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE




def train_func(ctx):
    torch.manual_seed(ctx.rank)
    model = GraphSAGE(5, 8, num_layers=2, out_channels=7, dropout=0.5)
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
    told = ctx.config.get("told", {}).get(str(ctx.rank))
    num_steps, loader = 0, ctx.loader("train", num_neighbors=[3, 3])
    for epoch in ctx.epochs(3):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
            num_steps += 1
            if num_steps == told:
                signal.raise_signal(signal.SIGINT)
    torch.save(model.state_dict(), ctx.output / f"last{ctx.rank}.pt")
"""


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    write(homogeneous(400, 1800, keep_ids=False), tmp_path / "graph", 2)
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "graph"


def train(graph: Path, name: str, num_servers: int, code: int = 0, **fields: Any) -> Path:
    folder = graph.parent / name
    cluster = PlainCluster(folder, graph, MIX, checkpoint_every=1000, **fields)
    cluster.start_servers(num_servers)
    cluster.run(graph.parent / "train.py", code=code)
    return folder


@pytest.mark.parametrize("num_servers", [pytest.param(0, marks=pytest.mark.campaign), 2])
def test_trainers_stop_after_the_same_step(graph: Path, num_servers: int) -> None:
    expected = train(graph, "whole", num_servers)
    # Rank 2 is told by nobody but the others.
    told = {"told": {"0": 5, "1": 4}}
    folder = train(graph, "stopped", num_servers, 130, config=told)
    stopped = newest_whole(folder / "checkpoints")
    assert stopped is not None
    sidecar, state = load(stopped.path)
    assert sidecar.iteration >= 4
    assert state["world_size"] == len(state["randoms"]) == 3
    again = train(graph, "again", num_servers, resume=stopped.path)
    for rank in range(3):
        last = torch.load(again / f"last{rank}.pt", weights_only=True)
        for name, tensor in torch.load(expected / f"last{rank}.pt", weights_only=True).items():
            assert torch.equal(last[name], tensor), (rank, name)
