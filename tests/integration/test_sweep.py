"""`headrace sweep` with real runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")

from headrace.api.graph import partition
from headrace.jobs.journal import TrialBegun, TrialEnded, read_journal
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

SCRIPT = """
import time, torch, headrace
from torch_geometric.nn import GraphSAGE

def train_func(ctx):
    torch.manual_seed(0)
    if ctx.config["width"] == 3:
        raise ValueError("3 is not a width")
    model = GraphSAGE(16, ctx.config["width"], 2, 16)
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters()))
    loader = ctx.loader("train", num_neighbors=[3, 3], batch_size=64)
    for _ in ctx.epochs(ctx.config.get("epochs", 2)):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            time.sleep(ctx.config.get("pause", 0.0))
        ctx.report(loss=loss.item())
    ctx.report(sum=float.hex(sum(p.detach().double().sum().item() for p in model.parameters())))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    partition("generated:nodes=2e3,edges=2e4,features=16", folder / "parts", 2)
    (folder / "tune.py").write_text(SCRIPT + "\nheadrace.train(train_func)\n")
    return folder


def headrace(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace", *words, "--runs", "runs"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


LOCAL = ("--local", "--graph", "parts", "--no-estimate")


def test_trials_are_ranked_and_a_failing_one_is_named(folder: Path) -> None:
    words = ["--grid", "width=8,3", "--metric", "loss", "--mode", "min", "--json", "--name", "two"]
    done = headrace(folder, "sweep", *LOCAL, *words, "--parallel", "2", "tune.py")
    out, err = done.communicate()
    assert done.returncode == 0, err
    found = json.loads(out)
    assert [(t["settings"]["width"], t["state"]) for t in found["trials"]] == [
        (8, "done"),
        (3, "failed"),
    ]
    assert found["trials"][0]["value"] > 0
    assert "3 is not a width" in found["trials"][1]["problem"]
    assert (folder / "runs" / "sweeps" / "two" / "sweep.png").exists()
    again = headrace(folder, "sweep", *LOCAL, "--grid", "width=8", "--name", "two", "tune.py")
    assert "the sweep two exists" in again.communicate()[1]
    assert again.returncode == 2


@pytest.mark.campaign
def test_trials_share_running_stores(folder: Path) -> None:
    up = headrace(folder, "stores", "up", "--graph", "parts", "--local")
    assert up.wait() == 0
    try:
        words = ["--local", "--stores", "parts", "--grid", "width=8,16", "--json"]
        out, err = headrace(folder, "sweep", *words, "--name", "shared", "tune.py").communicate()
        assert [trial["state"] for trial in json.loads(out)["trials"]] == ["done", "done"], err
        logs = folder / "runs" / "sweeps" / "shared" / "trials"
        assert not list(logs.glob("*/*/logs/store*.log"))
    finally:
        assert headrace(folder, "stores", "down", "parts").wait() == 0


@pytest.mark.campaign
def test_a_killed_sweep_continues_with_the_results_of_single_runs(folder: Path) -> None:
    grid = ["--grid", "width=8,16,24", "--set", "epochs=4", "--set", "pause=0.05"]
    begun = headrace(folder, "sweep", *LOCAL, *grid, "--parallel", "2", "--name", "k", "tune.py")
    journal = folder / "runs" / "sweeps" / "k" / "journal.jsonl"
    assert eventually(lambda: any(isinstance(e, TrialEnded) for e in read_journal(journal)))
    os.kill(begun.pid, signal.SIGKILL)
    begun.communicate()
    resumed = headrace(folder, "sweep", "--resume", "k", "--json")
    out, err = resumed.communicate()
    assert resumed.returncode == 0, err
    events = read_journal(journal)
    assert sorted(e.number for e in events if isinstance(e, TrialEnded)) == [0, 1, 2]
    assert any(isinstance(e, TrialBegun) and e.attempt == 2 for e in events)
    sums = {t["settings"]["width"]: t["figures"]["sum"] for t in json.loads(out)["trials"]}
    for width, total in sums.items():
        config = ["--set", f"width={width}", "--set", "epochs=4", "--json"]
        single = headrace(folder, "run", "--local", "--graph", "parts", *config, "tune.py")
        reports = json.loads(single.communicate()[0].splitlines()[-1])["reports"]
        assert reports[-1]["sum"] == total
