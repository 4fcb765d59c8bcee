"""A training that was interrupted goes on as if nothing had happened, to the last bit."""

from __future__ import annotations

import errno
import json
import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from torch.nn.functional import cross_entropy  # noqa: E402
from torch_geometric.nn import GraphSAGE  # noqa: E402

import headrace  # noqa: E402
from headrace.core.errors import SpecError  # noqa: E402
from headrace.runtime.protocol.run_context import CONTEXT_VARIABLE, RunContext  # noqa: E402
from headrace.runtime.protocol.trainer_messages import (  # noqa: E402
    CheckpointWrite,
    Message,
    NumEpochs,
    Resumed,
)
from headrace.runtime.trainer import checkpointer  # noqa: E402
from headrace.runtime.trainer.context import TrainContext  # noqa: E402
from headrace.training.checkpoint_files import load, newest_whole  # noqa: E402
from tests.support.sampler_processes import sampler_actors  # noqa: E402
from tests.unit.graph.small_graphs import homogeneous, write  # noqa: E402

NUM_EPOCHS, EVERY, NUM_BATCHES = 3, 2, 5


class StoppedError(Exception):
    """Stands for whatever ends a trainer."""


class Training:
    """A script that uses all there is to keep.

    Args:
        stop_after: Ends after so many steps of this process.
        warms_up: Whether it takes a batch before it trains, as lazy models want.
    """

    def __init__(self, stop_after: int = 0, warms_up: bool = False) -> None:
        self.stop_after, self.warms_up = stop_after, warms_up
        self.num_steps, self.num_epochs = 0, NUM_EPOCHS
        self.log: list[Any] = []
        self.at_stop: Callable[[], None] = self._raise

    def _raise(self) -> None:
        raise StoppedError

    def __call__(self, ctx: TrainContext) -> dict[str, Any]:
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002 - a script may use it
        random.seed(3)
        model = GraphSAGE(5, 4, num_layers=2, out_channels=7, dropout=0.5)
        model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
        draws = torch.Generator().manual_seed(1)
        ctx.keep(scheduler=scheduler, log=self.log, draws=draws)
        loader = ctx.loader("train", num_neighbors=[2, 2], batch_size=3)
        val_loader = ctx.loader("val", num_neighbors=[1, 1], batch_size=2)
        if self.warms_up:
            model(next(iter(loader)).x, torch.empty(2, 0, dtype=torch.long))
        for epoch in ctx.epochs(self.num_epochs):
            model.train()
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                scale = random.random() + torch.rand((), generator=draws)
                scale += np.random.rand()  # noqa: NPY002 - a script may use it
                (cross_entropy(out, batch.y[: batch.batch_size]) * scale).backward()
                optimizer.step()
                self.num_steps += 1
                self.log.append((epoch, *batch.n_id.tolist()))
                if self.num_steps == self.stop_after:
                    self.at_stop()
            scheduler.step()
            model.eval()
            with torch.no_grad():
                loss = sum(float(model(b.x, b.edge_index).sum()) for b in val_loader)
            self.log.append(loss)
            ctx.keep_best(model, loss=loss)
        return {"model": model.state_dict(), "lr": optimizer.param_groups[0]["lr"]}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Trains in a run of its own, with what is kept in a folder of the given name."""
    write(homogeneous(60, 240, keep_ids=False), tmp_path / "parts", 2)
    sent: list[Message] = []
    monkeypatch.setattr(checkpointer, "send", lambda path, message: sent.append(message))

    def train(training: Training, name: str, resume: str | None = None, **fields: Any) -> Any:
        found = newest_whole(tmp_path / resume / "checkpoints") if resume else None
        context = RunContext(
            machine="m1",
            messages=tmp_path / "messages",
            parts=tmp_path / "parts",
            output=tmp_path / name,
            resume=None if found is None else found.path,
            **{"checkpoint_every": EVERY, **fields},
        )
        path = tmp_path / f"{name}-{context.fingerprint()}.json"
        path.write_text(context.model_dump_json())
        monkeypatch.setenv(CONTEXT_VARIABLE, str(path))
        return headrace.train(training)

    train.sent = sent  # type: ignore[attr-defined]
    return train


def whole(run: Callable[..., Any], **settings: Any) -> tuple[Training, Any]:
    training = Training(**settings)
    return training, run(training, "whole")


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["lr"] == expected["lr"]
    for name, tensor in expected["model"].items():
        assert torch.equal(found["model"][name], tensor), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_samplers", "stops"),
    # With samplers every resume starts processes: one stop will do for a change.
    [
        (0, ()),
        pytest.param(2, (8,), marks=pytest.mark.integration),
        pytest.param(2, (3, NUM_EPOCHS * 7), marks=pytest.mark.campaign),
    ],
    ids=["0", "2", "2, first and last steps"],
)
def test_a_training_stopped_after_any_step_ends_the_same(
    run: Callable[..., Any], tmp_path: Path, num_samplers: int, stops: tuple[int, ...]
) -> None:
    with sampler_actors(tmp_path, tmp_path / "parts", num_samplers) as requests:
        samplers = tuple(f"sampler0.{i}" for i in range(num_samplers))
        run = partial(run, requests=requests, samplers=samplers)
        check_stops(run, tmp_path, num_samplers, stops)


def check_stops(
    run: Callable[..., Any], tmp_path: Path, num_samplers: int, stops: tuple[int, ...]
) -> None:
    undisturbed = Training()
    expected = run(undisturbed, "whole")
    num_steps = undisturbed.num_steps
    assert num_steps == NUM_EPOCHS * (7 if num_samplers else NUM_BATCHES)
    for stop in stops or range(2, num_steps + 1):
        name = f"stopped{stop}"
        with pytest.raises(StoppedError):
            run(Training(stop), name)
        again = Training()
        found = run(again, f"{name}-again", resume=name)
        assert_same(found, expected)
        assert again.log == undisturbed.log, stop
        best = torch.load(tmp_path / f"{name}-again" / "best.pt", weights_only=True)
        for key, value in torch.load(tmp_path / "whole" / "best.pt", weights_only=True).items():
            assert torch.equal(best[key], value)


def test_a_training_may_be_stopped_again_and_again(run: Callable[..., Any]) -> None:
    undisturbed, expected = whole(run)
    with pytest.raises(StoppedError):
        run(Training(3), "part0")
    for part in range(1, 5):
        with pytest.raises(StoppedError):
            run(Training(4), f"part{part}", resume=f"part{part - 1}")
    last = Training()
    assert_same(run(last, "last", resume="part4"), expected)
    assert last.num_steps < undisturbed.num_steps / 2


def test_a_batch_before_the_training_changes_nothing(run: Callable[..., Any]) -> None:
    _, expected = whole(run, warms_up=True)
    with pytest.raises(StoppedError):
        run(Training(3, warms_up=True), "stopped")
    assert_same(run(Training(warms_up=True), "again", resume="stopped"), expected)


def test_ctrl_c_saves_the_last_step(run: Callable[..., Any], tmp_path: Path) -> None:
    undisturbed, expected = whole(run)
    training = Training(4)
    training.at_stop = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(training, "stopped", checkpoint_every=1000)
    assert training.num_steps == 4
    found = newest_whole(tmp_path / "stopped" / "checkpoints")
    assert found is not None
    assert (found.sidecar.iteration, found.sidecar.epoch, found.sidecar.batch) == (4, 0, 4)
    again = Training()
    assert_same(run(again, "again", resume="stopped"), expected)
    assert again.num_steps == undisturbed.num_steps - 4


def test_ctrl_c_where_nothing_can_be_saved(run: Callable[..., Any]) -> None:
    training = Training(5)

    def wait() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    training.at_stop = wait
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        run(training, "stopped")
    assert signal.getsignal(signal.SIGINT) is before


def test_what_a_checkpoint_says_of_itself(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "_COST_SHARE", 1e9)
    whole(run)
    kept = sorted((tmp_path / "whole" / "checkpoints").iterdir())
    assert [path.name for path in kept] == [
        "checkpoint-00000014.json",
        "checkpoint-00000014.pt",
        "checkpoint-00000015.json",
        "checkpoint-00000015.pt",
    ]
    assert json.loads(kept[0].read_text()).items() >= {"epoch": 2, "batch": 4}.items()
    sidecar, state = load(kept[3])
    assert (sidecar.epoch, sidecar.batch, state["loop"]) == (NUM_EPOCHS, 0, None)
    assert state["world_size"] == 1
    assert set(state["kept"]) == {"scheduler", "log", "draws"}
    begun, *sent = run.sent  # type: ignore[attr-defined]
    assert begun == NumEpochs(NUM_EPOCHS)
    assert {type(message) for message in sent} == {CheckpointWrite}
    assert [message.iteration for message in sent] == [2, 4, 5, 6, 8, 10, 12, 14, 15]
    assert all(message.stall_s >= 0 and message.bytes > 1000 for message in sent)
    # A run that is over has nothing left to do, and more epochs go on from there.
    assert run(Training(), "again", resume="whole")["lr"] == pytest.approx(0.1 * 0.7**3)


def test_a_full_disk_is_not_said_to_be_a_lost_trainer(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            # As torch does, whose writer then finds less in the file than it has written.
            raise RuntimeError("unexpected pos 704 vs 598")  # noqa: B904

    monkeypatch.setattr(torch, "save", full)
    # The best model is not written in a thread: the script learns of it.
    with pytest.raises(OSError, match="No space left on device"):
        run(Training(), "whole")
    sent = run.sent  # type: ignore[attr-defined]
    problems = {each.problem for each in sent if isinstance(each, CheckpointWrite)}
    assert problems == {"cannot be written: No space left on device"}


def test_no_checkpoints_if_nobody_wants_them(run: Callable[..., Any], tmp_path: Path) -> None:
    run(Training(), "whole", checkpoint_every=0)
    assert not (tmp_path / "whole" / "checkpoints").exists()


def test_seeds_that_are_dealt_otherwise_begin_the_epoch_again(run: Callable[..., Any]) -> None:
    with pytest.raises(StoppedError):
        run(Training(8), "stopped", assignment="some")
    again = Training()
    run(again, "again", resume="stopped", assignment="others")
    assert again.num_steps == 2 * NUM_BATCHES
    (told,) = [message for message in run.sent if isinstance(message, Resumed)]  # type: ignore[attr-defined]
    assert told.deals_anew


@pytest.mark.parametrize("stop_after", [2 * NUM_BATCHES, 2 * NUM_BATCHES + 2])
def test_fewer_epochs_than_were_done_change_nothing(
    run: Callable[..., Any], tmp_path: Path, stop_after: int
) -> None:
    with pytest.raises(StoppedError):
        run(Training(stop_after), "stopped")
    again = Training()
    again.num_epochs = 1
    found = run(again, "again", resume="stopped")
    assert again.num_steps == 0
    saved = newest_whole(tmp_path / "stopped" / "checkpoints")
    assert saved is not None
    assert_same(found, {"model": load(saved.path)[1]["model"], "lr": found["lr"]})
    (told,) = [message for message in run.sent if isinstance(message, Resumed)]  # type: ignore[attr-defined]
    assert told.is_over


def test_what_does_not_fit_or_cannot_be_kept_is_said(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        run(Training(3), "stopped")

    def other(ctx: TrainContext) -> None:
        model = torch.nn.Linear(2, 2)
        ctx.prepare(model, torch.optim.SGD(model.parameters()))

    # Not torch's headline, which does not say what is different.
    what = r"the model of iteration 2 does not match this script's: Missing key\(s\) in state_dict"
    with pytest.raises(SpecError, match=what):
        run(other, "other", resume="stopped")
    with pytest.raises(SpecError, match="seen of type int cannot be restored"):
        TrainContext().keep(seen=3)
    with pytest.raises(SpecError, match="a checkpoint cannot hold"):
        TrainContext().keep(seen={"what": object()})


def test_a_training_may_have_two_parts(run: Callable[..., Any]) -> None:
    class Stages(Training):
        """Trains, and then trains again."""

        def __call__(self, ctx: TrainContext) -> dict[str, Any]:
            torch.manual_seed(3)
            model = torch.nn.Linear(5, 1)
            model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            ctx.keep(log=self.log)
            loader = ctx.loader("train", num_neighbors=[1], batch_size=3)
            for stage in (1, 2):
                for epoch in ctx.epochs(2):
                    for batch in loader:
                        optimizer.zero_grad()
                        model(batch.x).square().mean().backward()
                        optimizer.step()
                        self.num_steps += 1
                        self.log.append((stage, epoch, *batch.n_id.tolist()))
                        if self.num_steps == self.stop_after:
                            self.at_stop()
            return {"model": model.state_dict(), "lr": 0}

    undisturbed = Stages()
    expected = run(undisturbed, "whole")
    for stop in (7, 12, 17):
        with pytest.raises(StoppedError):
            run(Stages(stop), f"stopped{stop}")
        again = Stages()
        assert_same(run(again, f"again{stop}", resume=f"stopped{stop}"), expected)
        assert again.log == undisturbed.log


def test_alone_epochs_are_just_counted() -> None:
    assert list(TrainContext().epochs(3)) == [0, 1, 2]
    assert next(iter(TrainContext().epochs())) == 0
