"""A run on this machine whose disk is full at the driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.disks import small_disk
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = [pytest.mark.integration, pytest.mark.campaign]
pytest.importorskip("torch_geometric")

FILLING = """
import os, time, torch
from pathlib import Path
from torch_geometric.nn import GraphSAGE

def fill(folder):
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass

def train_func(ctx):
    loader = ctx.loader("train", [5, 5], batch_size=20)
    model = GraphSAGE(5, 8, num_layers=2, out_channels=3)
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters()))
    runs = Path(ctx.config["disk"])
    for epoch in ctx.epochs(3):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.x, batch.edge_index).square().mean().backward()
            optimizer.step()
        if epoch == 1 and not (runs / "filler").exists():
            while not list(runs.glob("2*/checkpoints/*.json")):
                time.sleep(0.05)
            fill(runs)
"""


def test_a_full_disk_of_the_driver_ends_a_run_as_it_should(tmp_path: Path) -> None:
    parts, script = tmp_path / "parts", tmp_path / "train.py"
    write(homogeneous(400, 4000), parts, 1)
    script.write_text(FILLING)
    command = [sys.executable, "-m", "headrace", "run"]
    # The paths of sockets below it must be short.
    temporary = Path(tempfile.mkdtemp(prefix="hr-"))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        variables = {**os.environ, "TMPDIR": str(temporary)}
        return subprocess.run(
            [*command, *words], capture_output=True, text=True, check=False, env=variables
        )

    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        options = ["--local", "--graph", str(parts), "--runs", str(disk)]
        done = run(*options, "--checkpoint-every", "1", "--set", f"disk={disk}", str(script))
        (folder,) = disk.glob("2*")
        status = json.loads((folder / "status.json").read_text())
        assert (done.returncode, status["state"]) == (7, "failed"), done.stderr
        full = f"{folder} cannot be written (No space left on device): the run goes on"
        assert full in done.stderr, done.stderr
        assert "cannot be stored: No space left on device" in status["error"]["problem"]
        assert list(temporary.glob("headrace-run-*")) == []
        (disk / "filler").write_bytes(b"")
        done = run("--resume", str(folder))
        assert done.returncode == 0, done.stderr
        assert "resumed at iteration" in done.stderr
        assert json.loads((folder / "status.json").read_text())["state"] == "done"
    shutil.rmtree(temporary)
