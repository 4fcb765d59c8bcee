"""Embeddings of a training function that runs alone, and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import headrace  # noqa: E402
from headrace.core.errors import RunError, SpecError  # noqa: E402
from headrace.graph.format.partitioned_graph import open_graph  # noqa: E402
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext  # noqa: E402
from headrace.runtime.trainer.context import TrainContext  # noqa: E402
from headrace.runtime.trainer.node_embeddings import KeptTable, NodeEmbeddings  # noqa: E402
from tests.unit.graph.small_graphs import heterogeneous, homogeneous, write  # noqa: E402


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTEXT_VARIABLE, raising=False)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own
def test_an_optimizer_that_is_prepared_steps_for_all_embeddings(tmp_path: Path) -> None:
    write(homogeneous(), tmp_path / "graph", 2)

    def learn(ctx: TrainContext, optimizer: Any, rows: Any) -> None:
        loader = ctx.loader("train", num_neighbors=[2, 2], batch_size=3)
        for _ in ctx.epochs(2):
            for batch in loader:
                optimizer.zero_grad()
                rows(batch.n_id).square().sum().backward()
                optimizer.step()

    found: list[Any] = []

    def train_func(ctx: TrainContext) -> None:
        model = torch.nn.Linear(3, 2)
        model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        first = ctx.embedding("first", 3, lr=0.02)
        other = ctx.embedding("other", 3, optimizer="sgd", lr=0.02)
        begin = first.rows(), other.rows()
        assert not torch.equal(*begin)
        learn(ctx, optimizer, lambda ids: model(first(ids)))
        assert torch.equal(other.rows(), begin[1])
        other.lr = 0.0
        other(torch.tensor([1])).sum().backward()
        other.step()
        assert torch.equal(other.rows(), begin[1])
        found.extend([begin[0], first.rows()])

    def as_torch(ctx: TrainContext) -> Any:
        rows = torch.nn.Embedding(30, 3, sparse=True, _weight=found[0].clone())
        sparse = torch.optim.SparseAdam(rows.parameters(), lr=0.02)
        model = torch.nn.Linear(3, 2)
        dense = torch.optim.SGD(model.parameters(), lr=0.1)
        dense.register_step_post_hook(lambda *_: sparse.step())
        model.register_forward_pre_hook(lambda *_: sparse.zero_grad())
        learn(ctx, dense, lambda ids: model(rows(ids)))
        return rows.weight.detach()

    torch.manual_seed(0)
    headrace.train(train_func, tmp_path / "graph")
    torch.manual_seed(0)
    theirs = headrace.train(as_torch, tmp_path / "graph")
    torch.testing.assert_close(found[1], theirs, rtol=1e-5, atol=1e-6)


def test_rows_are_of_a_node_type(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path / "graph", 2)

    def train_func(ctx: TrainContext) -> None:
        assert ctx.embedding("author", 4).rows().shape == (9, 4)
        assert ctx.embedding("taste", 2, node_type="venue", init=0).rows().tolist() == [[0, 0]] * 2
        wrong: list[tuple[str, int, dict[str, Any], str]] = [
            ("taste", 2, {}, "an embedding 'taste' exists already"),
            ("colour", 2, {}, "'colour' is not a node type"),
            ("paper", 0, {}, "dim: Input should be greater"),
            ("paper", 2, {"optimizer": "rmsprop"}, "optimizer: Input should be 'sgd'"),
            ("a b", 2, {"node_type": "paper"}, "cannot be called"),
            ("x", 2, {"node_type": "paper"}, "has a column 'x' already"),
            ("y", 2, {"node_type": "nobody"}, "no node type 'nobody'"),
        ]
        for name, dim, settings, says in wrong:
            with pytest.raises(SpecError, match=says):
                ctx.embedding(name, dim, **settings)

    headrace.train(train_func, tmp_path / "graph")


def test_trainers_need_stores_to_share_rows(tmp_path: Path) -> None:
    write(homogeneous(), tmp_path / "graph", 2)
    run = RunContext(machine="m1", messages=tmp_path / "nobody", world_size=2)
    embeddings = NodeEmbeddings(run, torch.device("cpu"))
    with pytest.raises(SpecError, match="no store serves part 0"):
        embeddings.make(
            open_graph(tmp_path / "graph"), "node", None, 0.1, dim=2, optimizer="sgd", seed=0
        )


def test_stores_of_other_runs_have_no_embeddings(tmp_path: Path) -> None:
    run = RunContext(machine="m1", messages=tmp_path / "nobody", shares_stores=True)
    embeddings = NodeEmbeddings(run, torch.device("cpu"))
    graph: Any = None
    with pytest.raises(SpecError, match="stores that other runs use"):
        embeddings.make(graph, "rows", None, 0.1)


def test_who_waits_for_trainers_that_have_exited_may_resume_again() -> None:
    def lost() -> None:
        raise RuntimeError("Connection closed by peer")

    table: Any = SimpleNamespace(load_settings=lambda state: None)
    # Of other errors than this, a checkpoint says that it does not match the script.
    with pytest.raises(RunError, match="other trainers exited"):
        KeptTable(table, 1, lost).load_state_dict({})
