"""`headrace cluster discover` writes a file of a live Ray cluster that the planner takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from headrace.api.documents.load import load_cluster
from headrace.core.cluster import Cluster
from headrace.testbed import Testbed
from tests.e2e.conftest import MACHINES

pytestmark = [pytest.mark.e2e]

PATIENCE_S = 240.0
JOB = {
    "version": 1,
    "trainers": 3,
    "samplers_per_trainer": 2,
    "sync": "ring",
    "batch_size": 100,
    "model_bytes": "1MB",
    "iterations": 10,
    "demands": {"trainer": {"cpu": 1}, "sampler": {"cpu": 1}},
}


def on(testbed: Testbed, host: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run headrace on a machine."""
    command = testbed.command(host, [sys.executable, "-m", "headrace", *map(str, words)])
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_discover_then_plan(testbed: Testbed, cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    done = on(testbed, "m1", "cluster", "discover", "--output", file)
    assert done.returncode == 0, done.stderr
    assert "found 4 machines" in done.stderr
    assert "round 3 of 3: 2 pairs" in done.stderr
    assert "bandwidth: measured" in file.read_text()

    found = load_cluster(file)
    assert tuple(machine.name for machine in found.machines) == MACHINES
    assert len({machine.kind for machine in found.machines}) == 1
    for machine, made, host in zip(found.machines, cluster.hosts, testbed.hosts, strict=True):
        assert machine.labels["address"] == host.address
        assert machine.resources.keys() == {"cpu", "memory"}
        assert machine.resources["cpu"] == made.resources["cpu"]
        assert made.resources["memory"] - 2**20 < machine.resources["memory"]
        assert machine.resources["memory"] <= made.resources["memory"]
        # Virtual links are as fast as two cores copy bytes; any cluster does better than this.
        assert min(machine.nic_in, machine.nic_out) > 1e6

    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump(JOB))
    plan = tmp_path / "plan.json"
    command = [
        sys.executable,
        "-m",
        "headrace",
        "plan",
        "--cluster",
        file,
        "--job",
        job,
        "-o",
        plan,
    ]
    planned = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert planned.returncode == 0, planned.stderr
    assert plan.is_file()


def test_bandwidth_as_asked_or_as_cards_say(testbed: Testbed) -> None:
    asked = on(testbed, "m0", "cluster", "discover", "--bandwidth", "25Gbps")
    assert asked.returncode == 0, asked.stderr
    machines = yaml.safe_load(asked.stdout)["machines"]
    assert {machine["nic_out"] for machine in machines} == {"25Gbps"}

    said = on(testbed, "m0", "cluster", "discover", "--no-bandwidth")
    assert said.returncode == 0, said.stderr
    assert "not measured" in said.stdout
    # Linux says 10 Gbit/s for every virtual link.
    assert {each["nic_in"] for each in yaml.safe_load(said.stdout)["machines"]} == {"10Gbps"}


def test_no_cluster_is_told(testbed: Testbed) -> None:
    done = on(testbed, "m0", "cluster", "discover", "--address", "10.255.255.1:6379")
    assert done.returncode == 2, done.stderr
    assert "there is no Ray cluster at 10.255.255.1:6379" in done.stderr
    assert "try: run this on a machine of the cluster" in done.stderr
