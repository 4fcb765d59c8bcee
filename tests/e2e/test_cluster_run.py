"""A plan runs on four Ray nodes exactly as planned, and leaves nothing however it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.api.documents.load import save_plan
from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job, Role
from headrace.core.plan import Plan
from headrace.testbed import Testbed
from tests.e2e.cluster_runs import Run, left_in, machine_folders
from tests.support.waiting import eventually
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

UNCHANGED = """
import json, os, socket, sys
import torch
import torch.distributed as dist
import helper

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print(json.dumps({"rank": dist.get_rank(), "sum": total.item(), "hostname": socket.gethostname(),
                  "threads": os.environ["OMP_NUM_THREADS"], "helper": helper.VALUE,
                  "argv": sys.argv[1:]}), flush=True)
dist.destroy_process_group()
"""
RAISES = """
import os, time
if os.environ["RANK"] == "1":
    raise ValueError("the loss is gone")
time.sleep(1000)
"""
UNRELATED = """
import time
import torch
from torch_geometric.nn import GraphSAGE

def train_func(ctx):
    torch.manual_seed(0)
    model = GraphSAGE(5, 8, num_layers=2, out_channels=7)
    optimizer = torch.optim.Adam(model.parameters())
    loader = ctx.loader("train", num_neighbors=[3, 3])
    for epoch in range(ctx.config.get("epochs", 1000)):
        for batch in loader:
            optimizer.zero_grad()
            model(batch.x, batch.edge_index)[: batch.batch_size].square().mean().backward()
            optimizer.step()
            time.sleep(0.02)
"""
FOREVER = "import time\nprint('up', flush=True)\ntime.sleep(1000)\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Path:
    """Plan, graph and scripts."""
    folder = tmp_path_factory.mktemp("run")
    job = Job(
        name="small",
        trainers=3,
        batch_size=4,
        iterations=5,
        demands={Role.TRAINER: {"cpu": 2}, Role.SAMPLER: {"cpu": 1}},
    )
    save_plan(plan(cluster, job), folder / "plan.json")
    write(homogeneous(num_nodes=120, num_edges=600), folder / "parts", 4)
    code = folder / "code"
    code.mkdir()
    (code / "helper.py").write_text("VALUE = 42\n")
    scripts = {
        "unchanged": UNCHANGED, "raises": RAISES, "unrelated": UNRELATED, "forever": FOREVER,
    }  # fmt: skip
    for name, text in scripts.items():
        (code / f"{name}.py").write_text(text)
    return folder


@dataclass(frozen=True)
class Hidden:
    """A graph that only the driver has: for all other machines its folder is empty."""

    folder: Path
    options: Sequence[str]
    before: Sequence[str]


@pytest.fixture(scope="module")
def hidden(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Hidden:
    scratch = tmp_path_factory.mktemp("hidden")
    place = scratch / "parts"
    place.mkdir()
    mount = f'mount --bind {folder / "parts"} {place} && exec "$@"'
    before = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    return Hidden(place, ["--cache", str(scratch / "cache-{machine}")], before)


def start_hidden(testbed: Testbed, folder: Path, hidden: Hidden, script: str) -> Run:
    path = folder / "code" / script
    return Run(testbed, folder, path, hidden.options, hidden.before, graph=hidden.folder)


@pytest.fixture(autouse=True)
def _nothing_is_left(testbed: Testbed) -> Iterator[None]:
    yield
    assert eventually(lambda: not left_in(testbed)), left_in(testbed)
    assert machine_folders(testbed) == set()


def planned(folder: Path) -> Plan:
    return Plan.model_validate_json((folder / "plan.json").read_bytes())


def test_an_unchanged_script_runs_where_the_plan_says_and_the_graph_is_shipped(
    testbed: Testbed, folder: Path, hidden: Hidden
) -> None:
    run = start_hidden(testbed, folder, hidden, "unchanged.py")
    code, out, err = run.end()
    assert code == 0, err
    assert err.count("of the graph in") == 4
    for m in range(4):
        (graph,) = (hidden.folder.parent / f"cache-m{m}").iterdir()
        assert {path.name for path in graph.glob("part-*")} == {f"part-{m}"}
    summary = json.loads(out.splitlines()[-1])
    assert summary["run_id"] == run.folder.name
    addresses = {host.name: host.address for host in testbed.hosts}
    placement = planned(folder).placement
    where = {f"store{m}": name for m, name in enumerate(addresses)}
    where |= {f"sampler{w}.0": name for w, name in enumerate(placement.samplers)}
    where |= {f"trainer{w}": name for w, name in enumerate(placement.trainers)}
    (places,) = run.events("places")
    found = {task: place["address"] for task, place in places["tasks"].items()}
    assert found == {task: addresses[name] for task, name in where.items()}
    ring = planned(folder).placed.ring_order
    for w, name in enumerate(placement.trainers):
        # Nothing but what the script prints, least of all torch's warnings of names without DNS.
        (line,) = (run.folder / "logs" / f"trainer{w}.log").read_text().splitlines()
        said = json.loads(line)
        assert said == {
            "rank": ring.index(w),
            "sum": 6.0,
            "hostname": name,
            "threads": "2",
            "helper": 42,
            "argv": [],
        }
    status = run.status()
    assert status["state"] == "done"
    assert {task["state"] for task in status["tasks"]} == {"ended"}
    assert "serving graph partition 3" in (run.folder / "logs" / "store3.log").read_text()


def test_a_script_that_fails_is_named_and_the_graph_is_shipped_once(
    testbed: Testbed, folder: Path, hidden: Hidden
) -> None:
    run = start_hidden(testbed, folder, hidden, "raises.py")
    code, _, err = run.end()
    assert err.count("of the graph in") == 0
    second = planned(folder).placed.ring_order[1]
    machine = planned(folder).placement.trainers[second]
    assert code == 7
    assert f"error: trainer{second} on {machine} exited with code 1" in err
    assert "ValueError: the loss is gone" in err
    assert "Traceback" in (run.folder / "logs" / f"trainer{second}.log").read_text()
    assert run.status()["state"] == "failed"


@pytest.mark.campaign  # `unit/runtime/protocol/test_parameter_check.py` has both sides of it
@pytest.mark.parametrize("independent", [False, True])
def test_trainers_of_unrelated_models_are_told_apart(
    testbed: Testbed, folder: Path, independent: bool
) -> None:
    options = ["--independent", "--set", "epochs=2"] if independent else []
    run = Run(testbed, folder, folder / "code" / "unrelated.py", options)
    code, _, err = run.end()
    if independent:
        assert code == 0, err
        return
    assert code == 7
    assert "train different models: their parameters differ by up to" in err
    assert "ctx.prepare(model, optimizer)" in " ".join(err.split())
    assert run.status()["state"] == "failed"


@pytest.mark.campaign  # `test_faults.py` kills a store; `integration/test_run_local.py` names it
def test_a_killed_store_is_named(testbed: Testbed, folder: Path) -> None:
    run = Run(testbed, folder, folder / "code" / "forever.py", ["--max-restarts", "0"])
    run.wait_for("running")
    pid = run.task("store2")["pid"]
    subprocess.run(testbed.command("m2", ["kill", "-9", str(pid)]), check=True)
    code, _, err = run.end()
    assert code == 7
    assert "error: store2 on m2 was ended by SIGKILL" in err


@pytest.mark.parametrize(
    "state",
    # `test_resuming.py` interrupts a run that trains.
    ["starting", pytest.param("running", marks=pytest.mark.campaign)],
)
def test_an_interrupt_ends_everything(testbed: Testbed, folder: Path, state: str) -> None:
    run = Run(testbed, folder, folder / "code" / "forever.py")
    run.wait_for(state)
    interrupt(run)
    code, _, err = run.end()
    assert code == 130, err
    assert "interrupted; all tasks of the run have ended" in err
    assert run.status()["state"] == "interrupted"


@pytest.mark.campaign  # `test_faults.py` kills a driver too, and sees what is left
def test_everything_ends_with_a_killed_driver(testbed: Testbed, folder: Path) -> None:
    run = Run(testbed, folder, folder / "code" / "forever.py")
    run.wait_for("running")
    os.killpg(run.process.pid, signal.SIGKILL)
    run.end()
    assert eventually(lambda: not left_in(testbed)), left_in(testbed)
    for folder in machine_folders(testbed):
        # Killed shells cannot; the next run on the same machines does.
        shutil.rmtree(folder)


def test_a_wrong_graph_is_said_before_anything_starts(testbed: Testbed, folder: Path) -> None:
    write(homogeneous(), folder / "three", 3)
    run = Run(testbed, folder, folder / "code" / "forever.py", graph=folder / "three")
    code, _, err = run.end()
    assert code == 2
    assert "the plan needs 4 partitions" in err


def test_a_missing_token_is_said_before_anything_starts(testbed: Testbed, folder: Path) -> None:
    before = ["env", "-u", "RAY_AUTH_MODE"]
    run = Run(testbed, folder, folder / "code" / "forever.py", before=before)
    code, _, err = run.end()
    assert code == 2
    assert "requires a token, and RAY_AUTH_MODE is not set" in err


def test_a_dry_run_starts_nothing(testbed: Testbed, folder: Path) -> None:
    run = Run(testbed, folder, folder / "code" / "forever.py", ["--dry-run"])
    code, out, err = run.end()
    assert code == 0, err
    found = json.loads(out)
    assert [task["name"] for task in found["tasks"]][:5] == [
        *(f"store{m}" for m in range(4)),
        "sampler0.0",
    ]
    assert [machine["missing_bytes"] for machine in found["machines"]] == [0] * 4


def interrupt(run: Run) -> None:
    """Ctrl-C for the driver."""
    os.killpg(run.process.pid, signal.SIGINT)
