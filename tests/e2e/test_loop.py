"""One command goes from a script to a report, on machines with slow network cards."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.api.auto import PROFILED_ITERATIONS
from headrace.api.documents.load import load_plan, load_profile
from headrace.api.profile import load_trace
from headrace.core.cluster import Cluster, Machine
from headrace.profiling import num_iterations
from headrace.runtime.callbacks.log_file import LOG
from headrace.runtime.controller.run import TRACE
from headrace.testbed import Testbed
from tests.e2e.cluster_runs import START_S, left_in
from tests.e2e.recovery_runs import SCRIPT
from tests.support.waiting import eventually
from tests.unit.graph.small_graphs import homogeneous, write

# The tutorial goes the same way, command by command, with every change.
pytestmark = [pytest.mark.e2e, pytest.mark.campaign, pytest.mark.timeout(600)]

MBIT = 1e6 / 8
BATCH_SIZE = 13
"""Of the script, which is not what a job usually has on this graph."""

CLUSTER = Cluster(
    machines=tuple(
        Machine(name=name, resources={"cpu": 4}, nic_in=rate * MBIT, nic_out=rate * MBIT)
        for name, rate in (("fast", 200), ("slow", 50))
    )
)


def test_auto_profiles_plans_runs_and_reports(name: str, tmp_path: Path) -> None:
    write(homogeneous(num_nodes=2000, num_edges=10_000), tmp_path / "parts", 2)
    (tmp_path / "code").mkdir()
    script = tmp_path / "code" / "train.py"
    script.write_text(SCRIPT.replace("[5, 3]", f"[5, 3], batch_size={BATCH_SIZE}"))
    words = [sys.executable, "-m", "headrace", "run", "--auto", "--json"]
    words += ["--graph", str(tmp_path / "parts"), "--runs", str(tmp_path / "runs")]
    words += ["--set", "epochs=3", "--set", "pause_s=0", str(script)]
    bed = Testbed.up(CLUSTER, name, shaped=True)
    done = subprocess.run(
        bed.command("fast", words), capture_output=True, text=True, timeout=START_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    told = [line.split(":")[0] for line in done.stderr.splitlines()]
    steps = ["cluster", "job", "job", "profile", "plan", "run", "report"]
    assert [step for step in told if step in steps] == steps, done.stderr
    assert f"job: {BATCH_SIZE} seeds per trainer and iteration, the script's" in done.stderr

    first, folder = (Path(found[step]["folder"]) for step in ("profile", "run"))
    others = set((tmp_path / "runs").glob("2*")) - {first, folder}
    assert len(others) == 1, "the first run ended when the script asked for its batch size"
    # The second of its name within a minute, if both began in the same one.
    assert re.search(r"-profile(-2)?$", first.name)
    assert num_iterations(load_trace(first / TRACE)) == PROFILED_ITERATIONS
    profile, plan = load_profile(folder / "profile.yaml"), load_plan(folder / "plan.json")
    assert profile.source == "measured"
    assert plan.profile == profile
    assert plan.job.batch_size == BATCH_SIZE
    assert [host.name for host in plan.cluster.hosts] == ["fast", "slow"]
    assert num_iterations(load_trace(folder / TRACE)) > PROFILED_ITERATIONS
    assert found["run"]["reports"][-1]["epoch"] == 2

    page = (folder / "report.html").read_text()
    assert found["report"]["page"] == str(folder / "report.html")
    assert "Predicted" in page
    assert "measured" in page
    # Torch would warn of machines without a name in DNS.
    assert "c10d" not in (folder / LOG).read_text()
    assert eventually(lambda: not left_in(bed)), left_in(bed)
