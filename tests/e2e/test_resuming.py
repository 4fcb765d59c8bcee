"""A run that was interrupted ends with the parameters of one that was not.

With every change `test_faults.py` interrupts and resumes a run; this one has a scheduler and
learnable rows too.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headrace.api.documents.load import save_plan  # noqa: E402
from headrace.testbed import Testbed  # noqa: E402
from headrace.training.checkpoint_files import load, newest_whole  # noqa: E402
from tests.e2e.cluster_runs import START_S, Run, left_in  # noqa: E402
from tests.support.cluster_bed import Layout, make_plan  # noqa: E402
from tests.support.waiting import eventually  # noqa: E402
from tests.unit.graph.small_graphs import homogeneous, write  # noqa: E402

pytestmark = [pytest.mark.e2e, pytest.mark.campaign, pytest.mark.timeout(900)]

NUM_EPOCHS, EVERY = 6, 5
SCRIPT = f"""
import time

import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE


def train_func(ctx):
    torch.manual_seed(5 + ctx.rank)  # every trainer drops other activations
    model = GraphSAGE(5 + 3, 16, num_layers=2, out_channels=7, dropout=0.5)
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters(), lr=0.02))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    ctx.keep(scheduler=scheduler)
    embedding = ctx.embedding("node", 3)
    loader = ctx.loader("train", num_neighbors=[5, 5])
    for epoch in ctx.epochs({NUM_EPOCHS}):
        for batch in loader:
            optimizer.zero_grad()
            x = torch.cat([batch.x, embedding(batch.n_id)], dim=1)
            out = model(x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            time.sleep(ctx.config["pause_s"])
        scheduler.step()
        ctx.report(epoch=epoch, loss=loss.item())
    if ctx.rank == 0:
        plain = getattr(model, "module", model)
        states = [plain.state_dict(), optimizer.state_dict(), embedding.rows()]
        torch.save(states, ctx.output / "last.pt")
"""


SERVERS = {"ring": (), "servers": ("m1", "m3")}


@pytest.fixture(scope="module", params=SERVERS)
def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Plan, graph and script."""
    folder = tmp_path_factory.mktemp(request.param)
    save_plan(make_plan(Layout(servers=SERVERS[request.param]), 12), folder / "plan.json")
    write(homogeneous(2000, 9000, keep_ids=False), folder / "parts", 4)
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(SCRIPT)
    return folder


@pytest.fixture(scope="module")
def undisturbed(testbed: Testbed, folder: Path) -> Path:
    """A run that nobody disturbed."""
    run = start(testbed, folder, 0)
    code, _, err = run.end()
    assert code == 0, err
    assert run.status()["attempt"] == 1
    return run.folder


def start(bed: Testbed, folder: Path, pause_s: float, *options: str) -> Run:
    more = ["--checkpoint-every", str(EVERY), "--set", f"pause_s={pause_s}", *options]
    return Run(bed, folder, folder / "code" / "train.py", more)


def resume(bed: Testbed, run: Run) -> dict[str, Any]:
    """Go on with a run; its figures."""
    words = ["-m", "headrace", "run", "--resume", run.folder.name, "--runs", str(run.runs)]
    command = bed.command("m0", [sys.executable, *words, "--set", "pause_s=0", "--json"])
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert summary["run_id"] == run.folder.name
    return summary


def last(folder: Path) -> Any:
    """What the trainers ended with."""
    return torch.load(folder / "last.pt", weights_only=True)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the last bit."""
    if isinstance(one, torch.Tensor):
        return bool(torch.equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def test_a_run_goes_on_to_the_last_bit(testbed: Testbed, folder: Path, undisturbed: Path) -> None:
    over = newest_whole(undisturbed / "checkpoints")
    assert over is not None
    num_steps = load(over.path)[0].iteration
    assert num_steps % NUM_EPOCHS == 0
    run = start(testbed, folder, 0.15)
    run.wait_for("running")
    assert eventually(lambda: len(run.events("collected")) > 1)
    (*_, before) = run.events("collected")
    os.killpg(run.process.pid, signal.SIGINT)
    code, _, err = run.end()
    assert code == 130, err
    assert "interrupted; all tasks of the run have ended" in err
    assert run.status()["state"] == "interrupted"
    saved = newest_whole(run.folder / "checkpoints")
    assert saved is not None
    assert before["iteration"] < saved.sidecar.iteration < num_steps
    resume(testbed, run)
    assert is_same(last(run.folder), last(undisturbed))
    assert run.status()["attempt"] == 2
    (went_on,) = run.events("resumed")
    assert went_on["iteration"] == saved.sidecar.iteration
    assert not went_on["deals_anew"]
    assert eventually(lambda: not left_in(testbed)), left_in(testbed)
