"""`headrace estimate` with scripts that train, and with scripts that do not."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("torch_geometric")


import headrace
from headrace.api.documents.load import load_plan, save_plan
from headrace.api.estimate import estimate, resource_requests
from headrace.api.graph import partition
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Role
from headrace.core.units import format_bytes
from headrace.runtime.controller.script_step import trace_script

_EDGES = (("node", "to", "node"),)

SCRIPT = """
import torch, headrace
from torch_geometric.nn import GraphSAGE, TopKPooling

class Net(torch.nn.Module):
    def __init__(self, pools):
        super().__init__()
        self.sage = GraphSAGE(16, 32, 2, 16)
        self.pool = TopKPooling(16) if pools else None

    def forward(self, x, edge_index):
        if self.pool is not None:
            self.pool(x, edge_index)
        return self.sage(x, edge_index)

def train_func(ctx):
    model = Net(ctx.config.get("pools", POOLS))
    model, optimizer = ctx.prepare(model, torch.optim.Adam(model.parameters()))
    loader = ctx.loader("train", num_neighbors=[5, 5], batch_size=32)
    for _ in ctx.epochs(1):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            ctx.report(loss=loss.item())
    open("trained", "w").close()
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph") / "parts"
    partition("generated:nodes=2e3,edges=2e4,features=16", folder, 2)
    return folder


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("POOLS", "False"))
    return path


def test_memory_of_all_tasks_is_known_before_the_run(
    graph: Path, script: Path, tmp_path: Path
) -> None:
    machines = [
        headrace.Machine(name="m", count=2, nic_in=1e9, nic_out=1e9, resources={"memory": 4e9})
    ]
    cluster = headrace.Cluster(machines=machines)
    plan = headrace.plan(cluster, headrace.Job(trainers=2, batch_size=100), graph=graph)
    found = estimate(script, graph, plan=plan)
    assert found.batch_size == 100
    assert not found.is_real
    assert {task.role for task in found.tasks} == {Role.TRAINER, Role.STORE, Role.SAMPLER}
    trainer = found.of(Role.TRAINER)
    assert trainer.made_of["process"] > 100e6
    assert trainer.made_of["activations"] > trainer.made_of["parameters"] > 0
    assert sum(sum(machine.tasks.values()) for machine in found.machines) == 6
    assert all(machine.fits for machine in found.machines)
    memory = json.loads(resource_requests(found, "ray"))
    assert memory["trainer"]["memory"] >= trainer.total_bytes
    assert "memory: " in resource_requests(found, "kubernetes")
    assert "#SBATCH --mem=" in resource_requests(found, "slurm")
    # Machines with too little memory, even for a smaller batch.
    tight = [
        headrace.Machine(name="m", count=2, nic_in=1e9, nic_out=1e9, resources={"memory": 2e8})
    ]
    plan = headrace.plan(headrace.Cluster(machines=tight), plan.job, graph=graph, cache_bytes=0)
    save_plan(plan, tmp_path / "plan.json")
    words = ["estimate", "--graph", graph, "--plan", "plan.json", "--batch-size", 8, "--json"]
    ran = subprocess.run(
        [sys.executable, "-m", "headrace", *map(str, words), str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 3
    smaller = json.loads(ran.stdout)
    assert not smaller["machines"][0]["fits"]
    assert smaller["batch_size"] == 8
    assert smaller["tasks"][0]["made_of"]["activations"] < trainer.made_of["activations"]
    # The script did not train.
    assert not (tmp_path / "trained").exists()
    assert "use a smaller batch" in ran.stderr


def test_plans_demand_the_memory_of_a_script(
    graph: Path, script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The script is traced once.
    monkeypatch.setattr("headrace.api.estimate.trace_script", cache(trace_script))

    def cluster(memory: float) -> headrace.Cluster:
        machine = headrace.Machine(
            name="m", count=2, nic_in=1e9, nic_out=1e9, resources={"memory": memory}
        )
        return headrace.Cluster(machines=[machine])

    job = headrace.Job(trainers=2, batch_size=400)
    plan = headrace.plan(cluster(8e9), job, graph=graph, script=script)
    assert plan.memory is not None
    assert plan.memory.batch_size == 400
    assert set(plan.memory.demands) == {Role.TRAINER, Role.STORE, Role.SAMPLER}
    trainer = plan.memory.of(Role.TRAINER).total_bytes
    assert plan.job.demand(Role.TRAINER)["memory"] == trainer
    needed = sum(machine.needed_bytes for machine in plan.memory.machines)
    assert needed == pytest.approx(sum(2 * task.total_bytes for task in plan.memory.tasks), rel=0.1)
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan
    # Each machine has room for a trainer, but not for a store and a sampler too.
    with pytest.raises(InfeasibleError, match="by the estimate of the script, ") as error:
        headrace.plan(cluster(trainer + 5e7), job, graph=graph, script=script)
    ways = error.value.remedy.split("; ")
    assert ways[0].startswith("a batch of ")
    assert f"instead of {format_bytes(trainer)}" in ways[0]
    assert ways[1].startswith("a window of 1 instead of 2 saves ")
    assert ways[2].startswith("gradient checkpointing saves at most ")
    assert ways[3].startswith("machines with at least ")
    # Demands of the job file count, and machines of unknown memory have room.
    stated = job.model_copy(update={"demands": {Role.TRAINER: {"memory": 1e6}}})
    plan = headrace.plan(cluster(trainer + 5e7), stated, graph=graph, script=script)
    assert plan.job.demand(Role.TRAINER) == {"memory": 1e6}


FULL_GRAPH_SCRIPT = """
import torch
from torch_geometric.nn import GAT

def train_func(ctx):
    data = ctx.full_graph()
    model = GAT(16, 32, 2, 16, heads=4)
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer = ctx.prepare(model, optimizer, full_graph=data)
    for _ in ctx.epochs(1):
        for batch in data:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)
            torch.nn.functional.cross_entropy(out, batch.y).backward()
            optimizer.step()
"""


def test_a_trainer_of_the_full_graph_has_the_largest_part(graph: Path, script: Path) -> None:
    script.write_text(FULL_GRAPH_SCRIPT)
    found = estimate(script, graph)
    parts = [headrace.open_graph(graph).part(number) for number in range(2)]
    assert found.is_full_graph
    assert found.shape in [(part.num_nodes("node"), part.num_edges(*_EDGES)) for part in parts]
    trainer = found.of(Role.TRAINER)
    assert "batches in flight" not in trainer.made_of
    # A message per edge, of 4 x 8 values, in both layers.
    assert trainer.made_of["activations"] > 2 * 32 * 4 * found.shape[1]
    assert trainer.made_of["gradient exchange"] == 2 * trainer.made_of["parameters"]


def test_a_step_runs_if_its_shapes_depend_on_values(graph: Path, script: Path) -> None:
    script.write_text(SCRIPT.replace("POOLS", "True"))
    found = estimate(script, graph)
    assert found.is_real
    assert found.of(Role.TRAINER).made_of["step"] > 0


@pytest.mark.parametrize(
    ("text", "problem"),
    [("x = 1 / 0", "division by zero"), ("x = 1", "took no batch of a headrace loader")],
)
def test_scripts_that_do_not_train_say_so(
    text: str, problem: str, graph: Path, script: Path
) -> None:
    script.write_text(text)
    with pytest.raises(SpecError, match=problem):
        estimate(script, graph)
