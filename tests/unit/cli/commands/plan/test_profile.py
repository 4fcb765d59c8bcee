"""`headrace profile` and `headrace trace` on the trace of a rehearsal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from headrace.api.profile import compare, save_profile, save_trace
from headrace.cli import app
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.core.plan import Plan
from headrace.core.profile import BatchTraffic, Profile, StoreTraffic, TaskTime, Variation

VARIES = Variation(peak_to_mean=1.2)


@pytest.fixture(scope="module")
def plan() -> Plan:
    cluster = Cluster(
        machines=(Machine(name="m", count=2, nic_in=1e7, nic_out=1e7, resources={"cpu": 4}),)
    )
    job = Job(trainers=2, batch_size=20, model_bytes=50_000, iterations=50)
    profile = Profile(
        task_times={role: {"default": TaskTime(mean=0.01, variation=VARIES)} for role in Role},
        store_traffic=StoreTraffic(bytes_per_seed=2000, variation=VARIES),
        batch_traffic=BatchTraffic(bytes_per_seed=500),
    )
    return headrace.plan(cluster, job, profile, method="colocate")


@pytest.fixture(scope="module")
def folder(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    headrace.save_plan(plan, path / "plan.json")
    seen = headrace.simulate(plan.cluster, plan.job, plan.profile, plan, record=True)
    save_trace(seen.trace(), path / "trace.npz")
    return path


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_a_trace_becomes_a_profile_that_predicts_it(folder: Path, plan: Plan) -> None:
    files = ("--plan", f"{folder}/plan.json", "--output", f"{folder}/profile.yaml")
    code, text = run("profile", *files, "--trace", f"{folder}/trace.npz", "--json")
    assert code == 0, text
    found = json.loads(text.splitlines()[-1])
    assert found["predicted_over_measured"] == pytest.approx(1, abs=0.1)
    assert found["skipped"] == 10
    profile = headrace.load_profile(folder / "profile.yaml")
    assert profile.source == "measured"
    assert profile.task_time(Role.TRAINER, "default").mean == pytest.approx(0.01, rel=0.1)
    trace = headrace.simulate(plan.cluster, plan.job, profile, plan, record=True).trace()
    assert compare(trace, plan, profile).ratio == pytest.approx(1, abs=0.1)
    save_profile(profile, folder / "again.yaml")
    assert headrace.load_profile(folder / "again.yaml") == profile
    code, text = run("profile", *files, "--trace", f"{folder}/trace.npz", "--skip", "5")
    assert code == 0, text
    assert "the first 5 iterations were skipped" in " ".join(text.split())
    assert "trainer" in text


def test_a_profile_is_of_one_thing(folder: Path) -> None:
    files = ("--plan", f"{folder}/plan.json", "--output", f"{folder}/none.yaml")
    code, text = run("profile", *files)
    assert code != 0
    assert "give SCRIPT or --trace" in text
    code, text = run("profile", *files, "train.py")
    assert code != 0
    assert "--graph" in text
    assert not (folder / "none.yaml").exists()


def test_a_trace_is_shown(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = ("--perfetto", f"{folder}/t.json", "--gantt", f"{folder}/t.png")
    code, text = run("trace", f"{folder}/trace.npz", *pictures)
    assert code == 0, text
    assert "50 iterations" in text
    assert json.loads((folder / "t.json").read_text())["traceEvents"]
    assert (folder / "t.png").read_bytes().startswith(b"\x89PNG")
    code, text = run("trace", f"{folder}/trace.npz", "--json")
    assert code == 0
    assert json.loads(text)["machines"][0]["out_bytes"] > 0
    (folder / "driver.lock").touch()  # by which runs are found
    for which in ([], [folder.name], [str(folder)]):
        again = run("trace", *which, "--runs", str(folder.parent), "--json")
        assert again == (code, text), again
    code, text = run("trace", f"{folder}/plan.json")
    assert code != 0
    assert "is not a trace" in text
