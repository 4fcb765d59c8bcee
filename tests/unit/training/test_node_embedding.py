"""Rows in stores learn as those of one process do; here all stores are in this process."""

from __future__ import annotations

import copy
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.format.partitioned_graph import PartitionedGraph, open_graph  # noqa: E402
from headrace.graph.store.client import StoreClient  # noqa: E402
from headrace.graph.store.embedding_service import Embeddings, EmbeddingService  # noqa: E402
from headrace.graph.store.embedding_table import EmbeddingSpec  # noqa: E402
from headrace.graph.store.in_process import InProcessChannel  # noqa: E402
from headrace.graph.store.service import StoreService  # noqa: E402
from headrace.graph.store.shard import open_shard  # noqa: E402
from headrace.rpc.config import RpcLimits  # noqa: E402
from headrace.training import node_embedding as module  # noqa: E402
from headrace.training.node_embedding import EmbeddingTable, NodeEmbedding  # noqa: E402
from tests.unit.graph.small_graphs import homogeneous, write  # noqa: E402

NUM_NODES, DIM, LR = 60, 4, 0.05
CPU = torch.device("cpu")


def open_parts(folder: Path, num_parts: int) -> PartitionedGraph:
    write(homogeneous(NUM_NODES, 300), folder, num_parts)
    return open_graph(folder)


def stores_of(graph: PartitionedGraph) -> list[StoreService]:
    shards = [open_shard(graph, part) for part in range(graph.num_parts)]
    return [StoreService(shard, RpcLimits(), embeddings=Embeddings(shard)) for shard in shards]


class Trainers:
    """Trainers of one embedding, each with its module."""

    def __init__(self, graph: PartitionedGraph, num: int, optimizer: str = "adam") -> None:
        spec = EmbeddingSpec(dim=DIM, seed=3, optimizer=optimizer, num_trainers=num)
        stores = stores_of(graph)
        self.tables = [
            EmbeddingTable(
                graph,
                "node",
                "emb",
                spec,
                [StoreClient(InProcessChannel(s)) for s in stores],
                r,
                LR,
                time.monotonic,
            )
            for r in range(num)
        ]
        self.modules = [NodeEmbedding(table, CPU, lambda: 1 / num) for table in self.tables]

    def step(self, ids: Any, factors: Any) -> None:
        """All trainers have a part of a batch, whose loss is the mean over parts."""
        share = len(ids) // len(self.modules)

        def run(rank: int) -> None:
            own = slice(rank * share, (rank + 1) * share)
            (self.modules[rank](ids[own]) * factors[own]).sum().backward()
            self.modules[rank].step()

        threads = [threading.Thread(target=run, args=(r,)) for r in range(len(self.modules))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def batches(num: int, seed: int = 0) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [
        (
            torch.tensor(rng.integers(0, NUM_NODES, 24)),
            torch.tensor(rng.standard_normal((24, DIM)).astype(np.float32)),
        )
        for _ in range(num)
    ]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own
@pytest.mark.parametrize("num_parts", [1, 2])
@pytest.mark.parametrize("num_trainers", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_rows_learn_as_in_one_process(
    tmp_path: Path, num_parts: int, num_trainers: int, optimizer: str
) -> None:
    ours = Trainers(open_parts(tmp_path, num_parts), num_trainers, optimizer)
    theirs = torch.nn.Embedding(NUM_NODES, DIM, sparse=True, _weight=ours.modules[0].rows())
    make = torch.optim.SGD if optimizer == "sgd" else torch.optim.SparseAdam
    steps = make(theirs.parameters(), lr=LR)
    for ids, factors in batches(6):
        ours.step(ids, factors)
        steps.zero_grad()
        ((theirs(ids) * factors).sum() / num_trainers).backward()
        steps.step()
        torch.testing.assert_close(
            ours.modules[-1].rows(), theirs.weight.detach(), rtol=1e-5, atol=1e-6
        )


def test_parts_make_no_difference_to_the_last_bit(tmp_path: Path) -> None:
    one = Trainers(open_parts(tmp_path / "1", 1), 2)
    three = Trainers(open_parts(tmp_path / "3", 3), 2)
    for ids, factors in batches(5):
        one.step(ids, factors)
        three.step(ids, factors)
    assert torch.equal(one.modules[0].rows(), three.modules[1].rows())


def test_a_state_is_put_back_to_the_last_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also into parts that were cut otherwise, and in many small pieces."""
    monkeypatch.setattr(module, "_PIECE_BYTES", 300)
    whole = Trainers(open_parts(tmp_path / "2", 2), 2)
    again = Trainers(open_parts(tmp_path / "3", 3), 2)
    for ids, factors in batches(3):
        whole.step(ids, factors)
    whole.tables[0].lr = 0.02
    state = whole.tables[0].state_dict()
    again.step(*batches(1, seed=9)[0])
    again.tables[0].load_state_dict(state)
    again.tables[1].load_settings(state)
    assert again.tables[0].lr == again.tables[1].lr == 0.02
    for ids, factors in batches(3, seed=1):
        whole.step(ids, factors)
        again.step(ids, factors)
    last, other = whole.tables[0].state_dict(), again.tables[0].state_dict()
    assert torch.equal(last["rows"], other["rows"])
    assert all(map(torch.equal, last["states"], other["states"]))
    assert last["num_steps"] == other["num_steps"] == 6


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    one = Trainers(open_parts(tmp_path, 2), 1).tables[0]
    state = one.state_dict()
    with pytest.raises(ValueError, match="optimizer was sgd"):
        one.load_state_dict({**state, "optimizer": "sgd"})
    with pytest.raises(ValueError, match="rows of shape"):
        one.load_state_dict({**state, "rows": state["rows"][:5]})


def test_rows_are_like_those_of_torch(tmp_path: Path) -> None:
    trainers = Trainers(open_parts(tmp_path, 2), 1)
    emb = trainers.modules[0]
    rows = emb(torch.tensor([[3, 1], [3, 59]]))
    assert rows.shape == (2, 2, DIM)
    assert rows.requires_grad
    assert torch.equal(rows[0, 0], emb.rows()[3])
    rows.relu_().sum().backward()  # in place
    with torch.no_grad():
        assert not emb(torch.tensor([3])).requires_grad
    assert emb(torch.empty(0, dtype=torch.int64)).shape == (0, DIM)
    assert not list(emb.parameters())
    assert copy.deepcopy(torch.nn.Sequential(emb))[0] is emb
    assert "60 x 4, adam" in repr(emb)
    before = emb.rows()
    emb.zero_grad()
    emb.step()
    assert torch.equal(emb.rows(), before)
    assert trainers.tables[0].state_dict()["num_steps"] == 0
    with pytest.raises(SpecError, match="60"):
        emb(torch.tensor([60]))


def test_rows_that_nobody_learns_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_UNUSED", 3)
    emb = Trainers(open_parts(tmp_path, 1), 1).modules[0]
    for _ in range(3):
        emb(torch.tensor([1])).sum().backward()
    with pytest.raises(SpecError, match="without a step"):
        emb(torch.tensor([1])).sum().backward()


def test_other_trainers_have_seconds_not_requests_to_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = open_parts(tmp_path, 1)
    now_s, replies = 0.0, 0

    def push(*_: object) -> bool:
        nonlocal now_s, replies
        replies += 1
        now_s += 1.0
        return False

    monkeypatch.setattr(EmbeddingService, "push", push)
    spec = EmbeddingSpec(dim=DIM, seed=3, optimizer="sgd", num_trainers=2)
    stores = [StoreClient(InProcessChannel(each)) for each in stores_of(graph)]
    table = EmbeddingTable(graph, "node", "emb", spec, stores, 0, LR, lambda: now_s)
    with pytest.raises(SpecError, match="for 600 s"):
        table.begin_step()()
    assert replies == 601
