"""Learnable rows in stores: trainers learn those of one process, also after kills and resumes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch.nn.functional import cross_entropy  # noqa: E402
from torch_geometric.nn import GraphSAGE  # noqa: E402

from headrace.training.checkpoint_files import load, newest_whole  # noqa: E402
from tests.integration.plain_cluster import PlainCluster  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402
from tests.unit.graph.small_graphs import endpoints, homogeneous, write  # noqa: E402

pytestmark = pytest.mark.integration

NUM_NODES = 200
EXACT = {"atol": 1e-5, "rtol": 1e-5}
ONE, TWO = np.array([[12.0]]), np.array([[7.0, 5.0], [3.0, 5.0]])
SCRIPT = """
import signal
import time

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE




def train_func(ctx):
    torch.manual_seed(ctx.rank)
    model = GraphSAGE(8, 8, num_layers=2, out_channels=7)
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
    emb = ctx.embedding("node", 8, lr=0.05, seed=3)
    first, seeds = emb.rows(), []
    loader = ctx.loader("train", num_neighbors=[-1, -1])
    for epoch in ctx.epochs(3):
        for batch in loader:
            optimizer.zero_grad()
            size = batch.batch_size
            out = model(emb(batch.n_id), batch.edge_index)[:size]
            cross_entropy(out, batch.y[:size]).backward()
            optimizer.step()
            seeds.append(batch.n_id[:size].clone())
            if len(seeds) == ctx.config.get("stop"):
                signal.raise_signal(signal.SIGINT)
            if len(seeds) == ctx.config.get("kill"):
                (ctx.output / f"kill{ctx.rank}").touch()
            if ctx.config.get("kill"):
                time.sleep(0.2)
    plain = getattr(model, "module", model)
    last = {"seeds": seeds, "model": plain.state_dict(), "first": first, "rows": emb.rows()}
    torch.save(last, ctx.output / f"last{ctx.rank}.pt")
"""


class Run:
    """A run with stores, in a folder of its own; what its trainers have at the end."""

    def __init__(self, base: Path, name: str, mix: np.ndarray, **fields: Any) -> None:
        num_servers, self._code = fields.pop("servers", 0), fields.pop("code", 0)
        graph = base / f"graph{mix.shape[1]}"
        if not graph.exists():
            write(homogeneous(NUM_NODES, 900, keep_ids=False), graph, mix.shape[1])
            (base / "train.py").write_text(SCRIPT)
        self.folder, self._script = base / name, base / "train.py"
        self.cluster = PlainCluster(self.folder, graph, mix, checkpoint_every=1000, **fields)
        self.cluster.start_servers(num_servers)
        self.cluster.start_stores()

    def end(self) -> list[dict[str, Any]]:
        self.cluster.run(self._script, code=self._code)
        ranks = range(0 if self._code else self.cluster.num_trainers)
        return [torch.load(self.folder / f"last{rank}.pt") for rank in ranks]


def alone(lasts: list[dict[str, Any]]) -> tuple[Any, Any]:
    """Model and rows of one process that takes all seeds, with torch's own embedding."""
    source = homogeneous(NUM_NODES, 900, keep_ids=False)
    columns = {column.name: column for column in source.nodes[0].columns}
    y = torch.tensor(columns["y"].read(0, NUM_NODES))
    edges = torch.stack([torch.tensor(ends) for ends in endpoints(source.edges[0])]).long()
    torch.manual_seed(0)
    model = GraphSAGE(8, 8, num_layers=2, out_channels=7)
    emb = torch.nn.Embedding(NUM_NODES, 8, sparse=True, _weight=lasts[0]["first"].clone())
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=0.05),
        torch.optim.SparseAdam(emb.parameters(), lr=0.05),
    ]
    for parts in zip(*(last["seeds"] for last in lasts), strict=True):
        seeds = torch.cat(parts)
        # Rows that seeds do not see have no gradient; SparseAdam would change them all the same.
        reached = hops(edges, seeds)
        number = torch.full((NUM_NODES,), -1)
        number[reached] = torch.arange(len(reached))
        inside = (number[edges] >= 0).all(0)
        for optimizer in optimizers:
            optimizer.zero_grad()
        out = model(emb(reached), number[edges[:, inside]])[number[seeds]]
        cross_entropy(out, y[seeds]).backward()
        for optimizer in optimizers:
            optimizer.step()
    return model, emb.weight.detach()


def hops(edges: Any, seeds: Any) -> Any:
    """All nodes within two steps towards the seeds."""
    reached = seeds
    for _ in range(2):
        reached = torch.cat([reached, edges[0, torch.isin(edges[1], reached)]]).unique()
    return reached


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embeddings")


@pytest.fixture(scope="module")
def ring(base: Path) -> list[dict[str, Any]]:
    return Run(base, "ring", TWO).end()


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own
@pytest.mark.parametrize("how", ["alone", "ring", "servers"])
def test_rows_learn_as_in_one_process(base: Path, ring: list[dict[str, Any]], how: str) -> None:
    lasts = ring
    if how == "alone":
        lasts = Run(base, how, ONE).end()
    elif how == "servers":
        lasts = Run(base, how, TWO, servers=1).end()
    model, rows = alone(lasts)
    assert not torch.allclose(rows, lasts[0]["first"], atol=0.05)
    for last in lasts:
        torch.testing.assert_close(last["rows"], rows, **EXACT)
        for name, parameter in model.state_dict().items():
            torch.testing.assert_close(last["model"][name], parameter, **EXACT)


def test_a_resume_and_killed_stores_change_no_bit(base: Path, ring: list[dict[str, Any]]) -> None:
    stopped = Run(base, "stopped", TWO, config={"stop": 4}, code=130)
    stopped.end()
    found = newest_whole(stopped.folder / "checkpoints")
    assert found is not None
    _, state = load(found.path)
    kept = state["kept"]["embedding node"]
    assert kept["rows"].shape == kept["states"][0].shape == kept["states"][1].shape
    assert kept["num_steps"] == state["iteration"]
    again = Run(base, "again", TWO, resume=found.path, config={"kill": 2})

    def kill() -> None:
        for part in (0, 1):
            assert eventually((again.folder / f"kill{part}").exists)
            again.cluster.start_store(part)
        # A store ends with the thread that has started it.
        over.wait()

    over, killer = threading.Event(), threading.Thread(target=kill)
    killer.start()
    try:
        lasts = again.end()
    finally:
        over.set()
        killer.join()
    assert len(lasts[0]["seeds"]) < len(ring[0]["seeds"])
    for ours, theirs in zip(lasts, ring, strict=True):
        assert torch.equal(ours["rows"], theirs["rows"])
        for name, parameter in ours["model"].items():
            assert torch.equal(parameter, theirs["model"][name]), name
