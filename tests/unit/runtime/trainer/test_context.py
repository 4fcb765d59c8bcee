"""A training function that runs alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

import headrace  # noqa: E402
from headrace.core.errors import SpecError  # noqa: E402
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE  # noqa: E402
from headrace.runtime.trainer.context import TrainContext  # noqa: E402
from tests.unit.graph.small_graphs import heterogeneous, homogeneous, write  # noqa: E402


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONTEXT_VARIABLE, raising=False)


def test_alone_there_is_one_trainer_with_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(homogeneous(), tmp_path / "graph", 2)
    model = torch.nn.Linear(5, 7)

    def train_func(ctx: TrainContext) -> int:
        assert (ctx.rank, ctx.world_size, ctx.config["lr"]) == (0, 1, 0.1)
        assert ctx.prepare(model) is model
        optimizer = torch.optim.SGD(model.parameters(), ctx.config["lr"])
        assert ctx.prepare(model, optimizer) == (model, optimizer)
        loader = ctx.loader("train", num_neighbors=[2, 2], batch_size=3)
        assert loader is ctx.loader("train")
        num_seeds: int = sum(batch.batch_size for batch in loader)
        assert ctx.mean(num_seeds, weight=4) == ctx.sum(num_seeds) == num_seeds
        assert ctx.mean(float("nan"), weight=0) == 0
        ctx.report(epoch=1, accuracy=0.5)
        assert [ctx.keep_best(model, loss=loss, patience=1) for loss in (2, 1, 3)] == [
            False,
            False,
            True,
        ]
        return num_seeds

    graph = headrace.open_graph(tmp_path / "graph")
    num_train = sum(graph.part(p).split("node", "train").size for p in range(2))
    found = headrace.train(train_func, tmp_path / "graph", {"lr": 0.1}, tmp_path / "kept")
    assert found == num_train
    assert capsys.readouterr().out == "epoch 1  accuracy 0.5\n"
    kept = torch.load(tmp_path / "kept" / "best.pt", weights_only=True)
    torch.testing.assert_close(kept["weight"], model.weight.detach())


def test_denormal_numbers_are_flushed_while_training() -> None:
    def is_flushed(*_: object) -> bool:
        return bool((torch.full((1,), 1e-40) * 1.0).item() == 0.0)

    assert not is_flushed()
    assert headrace.train(is_flushed)
    assert not is_flushed()


def test_all_nodes_are_inferred_at_the_end(tmp_path: Path) -> None:
    model = pytest.importorskip("torch_geometric.nn").GraphSAGE(5, 8, 2, 7)
    write(homogeneous(), tmp_path / "graph", 2)
    ctx = TrainContext(graph=tmp_path / "graph", output=tmp_path / "kept")
    done = ctx.infer(ctx.prepare(model), write=["output"])
    assert done is not None
    assert done.tables == {"node": tmp_path / "kept" / "nodes.parquet"}
    shutil.rmtree(tmp_path / "graph" / "part-1")
    with pytest.raises(SpecError, match=r"partition 1 of .* is not on this machine"):
        ctx.infer(model)


def test_what_is_asked_for_wrongly_is_said(tmp_path: Path) -> None:
    ctx = TrainContext()
    with pytest.raises(SpecError, match="no graph"):
        _ = ctx.graph
    with pytest.raises(SpecError, match="no split 'dev'"):
        ctx.loader("dev", num_neighbors=[2])
    with pytest.raises(SpecError, match="no num_neighbors"):
        ctx.loader("train")
    with pytest.raises(SpecError, match="either accuracy or loss"):
        ctx.keep_best(torch.nn.Linear(1, 1))


def test_a_graph_with_types(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path / "graph", 2)
    ctx = TrainContext(graph=tmp_path / "graph")
    batch = next(iter(ctx.loader("train", num_neighbors=[2], node_type="paper", batch_size=2)))
    assert batch["paper"].batch_size == 2


@pytest.mark.integration
def test_the_trainer_calls_train_func_once_whether_or_not_the_script_does(tmp_path: Path) -> None:
    plain, calls_itself = tmp_path / "plain.py", tmp_path / "calls.py"
    text = (
        "import headrace\n"
        "def train_func(ctx):\n"
        "    print('trains', ctx.rank, __name__, NAME)\n"
        "NAME = 'still here'\n"
    )
    plain.write_text(text)
    calls_itself.write_text(text + "if __name__ == '__main__':\n    headrace.train(train_func)\n")
    # Two trainers, which share the imports.
    code = (
        "import os, sys, headrace.runtime.trainer.context\n"
        "from headrace.runtime.trainer.__main__ import main\n"
        "for script in sys.argv[1:]:\n"
        "    if os.fork() == 0:\n"
        "        sys.exit(main([str(os.getppid()), 'm1', script]))\n"
        "    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0\n"
    )
    command = [sys.executable, "-c", code, str(plain), str(calls_itself)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trains 0 __main__ still here\n" * 2
