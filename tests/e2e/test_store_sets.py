"""Stores that outlive runs, on four Ray nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.api.documents.load import save_plan
from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job, Role
from headrace.testbed import Testbed
from tests.support.waiting import eventually
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = [pytest.mark.e2e, pytest.mark.campaign, pytest.mark.timeout(900)]

HANG_S = 300.0

SCRIPT = """
import time
from pathlib import Path
import torch
from torch_geometric.nn import GraphSAGE

def train_func(ctx):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GraphSAGE(5, 8, num_layers=2, out_channels=7)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = ctx.loader("train", num_neighbors=[3, 3])
    folder = Path(ctx.config["folder"])
    for epoch in ctx.epochs(20):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
            optimizer.step()
        if epoch == 1:
            (folder / "reached").touch()
            while ctx.config["waits"] and not (folder.parent / "killed").exists():
                time.sleep(0.05)
    if ctx.rank == 0:
        sums = [float(each.double().sum()) for each in model.parameters()]
        (folder / "model").write_text(repr(sums))
"""


class Bed:
    """Commands on the first machine."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed, self.folder, self.runs = bed, folder, folder / "runs"

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "headrace", *map(str, arguments), "--runs", str(self.runs)]
        pipe = subprocess.PIPE
        return subprocess.Popen(self.bed.command("m0", words), stdout=pipe, stderr=pipe, text=True)

    def run(self, *arguments: str | Path) -> str:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=HANG_S)
        assert process.returncode == 0, err
        return out

    def train(self, name: str, *options: str | Path, waits: bool) -> subprocess.Popen[str]:
        (self.folder / name).mkdir()
        settings = ["--set", f"folder={self.folder / name}", "--set", f"waits={str(waits).lower()}"]
        plan = self.folder / "plan.json"
        script = self.folder / "code" / "train.py"
        return self.start("run", script, "--plan", plan, "--name", name, *settings, *options)

    def status(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.run("stores", "status", "parts", "--json"))
        return shown


@pytest.fixture
def bed(testbed: Testbed, cluster: Cluster, tmp_path: Path) -> Iterator[Bed]:
    job = Job(
        name="small",
        trainers=2,
        batch_size=20,
        demands={Role.TRAINER: {"cpu": 1}, Role.SAMPLER: {"cpu": 1}, Role.STORE: {"cpu": 1}},
    )
    save_plan(plan(cluster, job), tmp_path / "plan.json")
    write(homogeneous(400, 4000), tmp_path / "parts", 4)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    on = Bed(testbed, tmp_path)
    yield on
    on.start("stores", "down", "parts", "--force").communicate(timeout=HANG_S)


@pytest.mark.parametrize("victim", ["pid", "actor_pid"])
def test_two_runs_go_on_when_a_store_is_killed(bed: Bed, victim: str) -> None:
    graph = bed.folder / "parts"
    bed.run("stores", "up", "--graph", graph, "--plan", bed.folder / "plan.json")
    stores = bed.status()["stores"]
    assert [store["machine"] for store in stores] == ["m0", "m1", "m2", "m3"]
    both = [bed.train(name, "--stores", "parts", waits=True) for name in ("a", "b")]
    reached = [bed.folder / name / "reached" for name in ("a", "b")]
    assert eventually(
        lambda: all(map(Path.exists, reached)) or any(run.poll() is not None for run in both)
    )
    assert [run.poll() for run in both] == [None, None]

    # In the pid namespace of the machine.
    subprocess.run(bed.bed.command("m1", ["kill", "-9", str(stores[1][victim])]), check=True)
    (bed.folder / "killed").touch()
    for run in both:
        _, err = run.communicate(timeout=HANG_S)
        assert run.returncode == 0, err
    assert eventually(lambda: bed.status()["stores"][1]["state"] == "running")
    after = bed.status()["stores"]
    assert [store["restarts"] for store in after] == [0, 1, 0, 0]
    assert [store["ports"] for store in after] == [store["ports"] for store in stores]

    alone = bed.train("alone", "--graph", graph, waits=False)
    _, err = alone.communicate(timeout=HANG_S)
    assert alone.returncode == 0, err
    models = {(bed.folder / name / "model").read_text() for name in ("a", "b", "alone")}
    assert len(models) == 1
    bed.run("stores", "down", "parts")
    assert not (bed.runs / "stores").exists()
