"""A run on four Ray nodes goes on without a machine, and uses it again once it is back.

What it does about killed processes is in `test_faults.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

# Now: PyG warns of what it imports, and warnings are errors in tests.
pytest.importorskip("torch_geometric.nn")

from headrace.api.documents.load import save_plan
from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job, Role
from headrace.core.plan import Plan
from headrace.testbed import Testbed
from tests.e2e.cluster_runs import left_in, machine_folders
from tests.e2e.recovery_runs import WatchedRun, difference, kill_raylet, write_script
from tests.support.fault_victims import start_raylet
from tests.support.waiting import eventually
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = [pytest.mark.e2e, pytest.mark.campaign, pytest.mark.timeout(1800)]

OPTIONS = ["--checkpoint-every", "20", "--set", "epochs=8", "--set", "pause_s=0.03"]
SILENCE_S = 15.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, cluster: Cluster) -> Path:
    """Plan, graph and script."""
    folder = tmp_path_factory.mktemp("recovery")
    job = Job(
        name="small",
        trainers=3,
        batch_size=4,
        iterations=5,
        demands={Role.TRAINER: {"cpu": 2}, Role.SAMPLER: {"cpu": 1}},
    )
    save_plan(plan(cluster, job), folder / "plan.json")
    write(homogeneous(num_nodes=1200, num_edges=6000), folder / "parts", 4)
    write_script(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(testbed: Testbed, folder: Path) -> WatchedRun:
    """A run that nobody disturbs."""
    run = begin(testbed, folder)
    run.end_well()
    return run


@pytest.fixture(autouse=True)
def _nothing_is_left(testbed: Testbed) -> Iterator[None]:
    yield
    assert eventually(lambda: not left_in(testbed)), left_in(testbed)
    assert machine_folders(testbed) == set()


def begin(testbed: Testbed, folder: Path, *options: str) -> WatchedRun:
    run = WatchedRun(testbed, folder, folder / "code" / "train.py", [*OPTIONS, *options])
    run.watch()
    return run


def other_machine(folder: Path) -> str:
    """One with a trainer, and without the driver."""
    planned = Plan.model_validate_json((folder / "plan.json").read_bytes())
    return next(name for name in planned.placement.trainers if name != "m0")


def test_a_run_goes_on_without_a_machine_and_uses_it_again(
    testbed: Testbed, folder: Path, undisturbed: WatchedRun
) -> None:
    lost = other_machine(folder)
    # While there is this file it is slow, so that it still runs when the machine is back.
    slow = folder / "slow"
    run = begin(testbed, folder, "--elastic", "--set", f"slow={slow}")
    try:
        run.wait_until(50)
        slow.touch()
        killed_s = kill_raylet(testbed, lost)
        assert eventually(lambda: run.status()["attempt"] == 2 and run.heard("resumed at")), (
            run.said
        )
        assert {task["machine"] for task in run.status()["tasks"]} == {"m0", "m1", "m2", "m3"} - {
            lost
        }
    finally:
        start_raylet(testbed, lost)
    assert eventually(lambda: run.heard(f"{lost} has joined")), run.said
    slow.unlink()
    run.end_well()
    assert run.heard(f"{lost} is lost: ")
    assert run.heard(f"{lost} has joined")
    assert {task["machine"] for task in run.status()["tasks"]} == {"m0", "m1", "m2", "m3"}
    assert difference(run, undisturbed) <= 1e-4
    assert run.longest_silence_s(killed_s) < SILENCE_S, run.said
