"""What would mislead a user on a cluster: another graph, a damaged one, infinite gradients."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.api.documents.load import load_plan, save_plan
from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job, Role
from headrace.testbed import Testbed
from tests.e2e.cluster_runs import Run
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = [pytest.mark.e2e, pytest.mark.campaign, pytest.mark.timeout(600)]

SCRIPT = """
import time
import torch
from torch_geometric.nn import GraphSAGE
import headrace

def train_func(ctx):
    torch.manual_seed(0)
    graph = headrace.open_graph("parts")  # only the driver's machine has something there
    assert graph.folder == ctx.graph.folder
    model = GraphSAGE(5, 8, num_layers=2, out_channels=7)
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer = ctx.prepare(model, optimizer)
    loader = ctx.loader("train", num_neighbors=[3, 3])
    for epoch in ctx.epochs(ctx.config.get("epochs", 3)):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)
            if ctx.rank == 1 and ctx.config.get("bad") and epoch == 1:
                out = out * float("nan")
            out.sum().backward()
            optimizer.step()
            time.sleep(0.05)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(homogeneous(200, 2000, keep_ids=False), tmp_path / "parts", 4)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "code" / "large.bin").write_bytes(bytes(11 << 20))
    cluster = Cluster.model_validate(
        {"machines": [{"name": f"m{i}", "nic": "1Gbps", "resources": {"cpu": 4}} for i in range(4)]}
    )
    job = Job(
        trainers=2, batch_size=8, demands={Role.TRAINER: {"cpu": 1}, Role.SAMPLER: {"cpu": 1}}
    )
    save_plan(plan(cluster, job, method="colocate", policy="maxmin"), tmp_path / "plan.json")
    return tmp_path


def test_a_path_is_the_graph_of_the_run_and_large_files_stay(
    testbed: Testbed, folder: Path
) -> None:
    run = Run(testbed, folder, folder / "code" / "train.py")
    code, _, err = run.end()
    assert code == 0, err
    assert "large.bin (11.53 MB)" in " ".join(err.split())
    assert not (run.folder / "checkpoints" / "held").exists()


def test_a_damaged_file_ends_the_run_and_is_named(testbed: Testbed, folder: Path) -> None:
    path = folder / "parts" / "part-2" / "node-0" / "x.bin"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    run = Run(testbed, folder, folder / "code" / "train.py")
    code, _, err = run.end()
    said = " ".join(err.split())
    assert code == 7, err
    assert "part-2/node-0/x.bin has the checksum" in said
    assert "Traceback" not in said
    assert run.status()["state"] == "failed"


@pytest.mark.parametrize("allowed", [False, True])
def test_infinite_gradients_end_the_run(testbed: Testbed, folder: Path, allowed: bool) -> None:
    options = ["--set", "bad=true", *(["--allow-nan"] if allowed else [])]
    run = Run(testbed, folder, folder / "code" / "train.py", options)
    code, _, err = run.end()
    if allowed:
        assert code == 0, err
        return
    assert code == 7
    said = " ".join(err.split())
    second = load_plan(folder / "plan.json").placed.ring_order[1]
    assert f"error: trainer{second} on" in said
    assert "gradients are infinite or not a number in step" in said
    assert "Traceback" not in said
