"""`headrace stores`: stores of this machine that several runs use at once or in turn."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

from tests.support.waiting import eventually
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = pytest.mark.integration

HANG_S = 300.0

SCRIPT = """
import time
from pathlib import Path
import torch
from torch_geometric.nn import GraphSAGE

def train_func(ctx):
    torch.manual_seed(0)
    folder = Path(ctx.config["folder"])
    model = GraphSAGE(5, 8, num_layers=2, out_channels=7)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = ctx.loader("train", [3, 3], batch_size=20, seed=1)
    for epoch in ctx.epochs(40):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
        if epoch == 1:
            (folder / "reached").touch()
            while ctx.config["waits"] and not (folder.parent / "killed").exists():
                time.sleep(0.02)
    weights = {name: each.tolist() for name, each in model.state_dict().items()}
    import json
    (folder / "model.json").write_text(json.dumps(weights))
"""


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    write(homogeneous(400, 4000), tmp_path / "parts", 2)
    return tmp_path / "parts"


@pytest.fixture
def up(parts: Path) -> Iterator[dict[str, Any]]:
    done = stores("up", "--graph", parts, "--local", "--json")
    assert done.returncode == 0, done.stderr
    yield json.loads(done.stdout)
    stores("down", "parts", "--force")


def stores(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "stores", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)


def status() -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(stores("status", "parts", "--json").stdout)
    return shown


def start(tmp_path: Path, name: str, *options: str, waits: bool) -> subprocess.Popen[str]:
    folder = tmp_path / name
    folder.mkdir()
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    settings = ["--set", f"folder={folder}", "--set", f"waits={str(waits).lower()}"]
    command = [sys.executable, "-m", "headrace", "run", "--local", "--name", name]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*command, *settings, *options, str(script)], stdout=pipe, stderr=pipe, text=True
    )


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
def test_two_runs_use_stores_of_which_one_is_killed(
    tmp_path: Path, runs: Path, parts: Path, up: dict[str, Any]
) -> None:
    (store,) = up["stores"]
    both = [start(tmp_path, name, "--stores", "parts", waits=True) for name in ("a", "b")]
    reached = [tmp_path / name / "reached" for name in ("a", "b")]
    assert eventually(
        lambda: all(map(Path.exists, reached)) or any(run.poll() is not None for run in both)
    )
    assert [run.poll() for run in both] == [None, None], both[0].communicate()
    assert len(status()["runs"]) == 2
    refused = stores("down", "parts")
    assert (refused.returncode, "in use by" in refused.stderr) == (2, True)

    os.kill(store["pid"], signal.SIGKILL)
    (tmp_path / "killed").touch()
    for run in both:
        _, err = run.communicate(timeout=HANG_S)
        assert run.returncode == 0, err
    assert eventually(lambda: status()["stores"][0]["state"] == "running")
    (after,) = status()["stores"]
    assert after["restarts"] == 1
    assert after["ports"] == store["ports"]
    assert after["pid"] != store["pid"]
    for folder in runs.glob("2*"):
        found = json.loads((folder / "status.json").read_text())
        assert (found["state"], found["restarts"], found["attempt"]) == ("done", 0, 1)
        (task,) = (task for task in found["tasks"] if task["name"] == "store0")
        assert task["pid"] is None

    alone = start(tmp_path, "alone", "--graph", str(parts), waits=False)
    _, err = alone.communicate(timeout=HANG_S)
    assert alone.returncode == 0, err
    one, two, three = ((tmp_path / name / "model.json").read_text() for name in ("a", "b", "alone"))
    assert one == two == three

    supervisor = int(up["supervisor"].split()[1])
    assert stores("down", "parts").returncode == 0
    assert not is_running(supervisor)
    assert not is_running(after["pid"])
    assert not (runs / "stores").exists()


def test_other_stores_and_graphs_are_refused(
    tmp_path: Path, runs: Path, parts: Path, up: dict[str, Any]
) -> None:
    again = stores("up", "--graph", parts, "--local")
    assert again.returncode == 2
    assert "the stores parts are up already" in again.stderr
    write(homogeneous(400, 4001), tmp_path / "other", 2)
    for options, words in (
        (("--graph", str(tmp_path / "other"), "--stores", "parts"), "serve the graph that"),
        (("--stores", "none"), "there are no stores named none"),
        (("--stores", "parts", "--no-tls"), "omit --no-tls"),
    ):
        run = start(tmp_path, words.split()[-1], *options, waits=False)
        _, err = run.communicate(timeout=HANG_S)
        assert run.returncode == 2, err
        assert words in err
    assert not list(runs.glob("2*"))


def test_stores_that_were_killed_are_replaced(runs: Path, parts: Path, up: dict[str, Any]) -> None:
    assert (runs / "stores" / "parts").stat().st_mode & 0o777 == 0o700
    assert (runs / "stores" / "parts" / "keys-store0").stat().st_mode & 0o777 == 0o600
    os.kill(int(up["supervisor"].split()[1]), signal.SIGKILL)
    assert eventually(lambda: not is_running(up["stores"][0]["pid"]))
    shown = stores("status", "parts")
    assert shown.returncode == 1
    assert "has ended" in shown.stdout
    done = stores("up", "--graph", parts, "--local", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["is_up"]
    answer = stores("status")
    assert (answer.returncode, "serving" in answer.stdout) == (0, True)


def test_a_graph_that_cannot_be_served_leaves_nothing(runs: Path, parts: Path) -> None:
    path = parts / "part-0" / "node-0" / "x.bin"
    path.write_bytes(bytes(path.stat().st_size))
    done = stores("up", "--graph", parts, "--local", "--name", "damaged")
    if done.returncode == 0:
        # Files are verified while the stores serve.
        assert eventually(lambda: stores("status", "damaged").returncode == 1)
        assert "damaged" in stores("status", "damaged").stdout
        assert stores("down", "damaged").returncode == 0
    assert not (runs / "stores").exists()
