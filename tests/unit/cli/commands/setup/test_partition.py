"""`headrace partition` and `headrace graph`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import headrace
from headrace.cli import app
from headrace.core.errors import SpecError
from headrace.graph.build.partition import PartitionSpec, partition
from headrace.graph.partitioners.select import METHODS
from headrace.graph.schema import GraphSource
from headrace.graph.sources.generated import parse

pytestmark = pytest.mark.integration

SOURCE = "generated:nodes=4000,edges=40000,features=8"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_graph_is_partitioned_shown_and_verified(tmp_path: Path) -> None:
    folder, picture = tmp_path / "parts", tmp_path / "parts.png"
    made = invoke(
        *("partition", SOURCE, "--parts", "3", "--clusters", "2", "--features", "float16"),
        *("-o", str(folder), "--plot", str(picture), "--json"),
    )
    assert made.exit_code == 0, made.output
    summary = json.loads(made.stdout)
    assert summary["num_nodes"] == {"node": 4000}
    assert sum(row["edges"] for row in summary["parts"]) == 40_000
    assert summary["columns"]["node"]["x"] == ["float16", 8]
    assert max(summary["quality"]["balance"].values()) <= 1.06
    assert picture.stat().st_size > 10_000
    shown = invoke("graph", "info", str(folder))
    assert shown.exit_code == 0
    assert "edge cut" in shown.stdout
    assert json.loads(invoke("graph", "info", str(folder), "--json").stdout) == summary
    assert invoke("graph", "verify", str(folder)).exit_code == 0
    damaged = folder / "part-1" / "node-0" / "x.bin"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x7f")
    found = invoke("graph", "verify", str(folder), "--json")
    assert found.exit_code == 1
    assert "part-1/node-0/x.bin" in json.loads(found.stdout)["problems"][0]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_partitions(method: str, tmp_path: Path) -> None:
    graph = headrace.partition(SOURCE, tmp_path / "parts", 4, method=method)
    assert graph.manifest.method == method
    assert graph.num_parts == 4
    ids = np.arange(4000)
    assert np.array_equal(graph.to_original("node", graph.to_new("node", ids)), ids)


def test_a_cluster_gets_parts_of_its_machines_sizes(tmp_path: Path) -> None:
    cluster = headrace.Cluster.model_validate(
        {
            "machines": [
                {"name": "big", "nic": "20Gbps", "resources": {"memory": "64GiB"}},
                {"name": "small", "nic": "10Gbps", "resources": {"memory": "64GiB"}, "count": 2},
            ]
        }
    )
    graph = headrace.partition(SOURCE, tmp_path / "parts", cluster)
    assert graph.manifest.shares == pytest.approx((0.4, 0.3, 0.3), abs=0.02)
    sizes = np.diff(graph.offsets("node"))
    assert np.all(sizes <= 4000 * np.array(graph.manifest.shares) * 1.051)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--parts", "2", "--cluster", "c.yaml"], "exactly one of --parts and --cluster"),
        ([], "exactly one of --parts and --cluster"),
        (["--parts", "5000"], "5000 partitions"),
        (["--parts", "2", "--method", "best"], "no partitioner 'best'"),
        (["--parts", "2", "--balance", "weight"], "'weight' cannot be balanced"),
        (["--parts", "2", "--features", "int2"], "int2"),
    ],
)
def test_what_cannot_be_had_is_refused(arguments: list[str], says: str, tmp_path: Path) -> None:
    folder = tmp_path / "parts"
    refused = invoke("partition", SOURCE, "-o", str(folder), *arguments)
    assert refused.exit_code == 2
    assert says in refused.output
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A source that is not there either: it would be complained of, if it were looked at first.
    (tmp_path / "parts").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="parts exists already: choose another name"):
        headrace.partition("nowhere.npz", tmp_path / "parts", 2)
    with pytest.raises(SpecError, match=r"cannot be created, .*/file is a file"):
        headrace.partition("nowhere.npz", tmp_path / "file" / "parts", 2)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(SpecError, match=f"{tmp_path} is not writable: choose another"):
        headrace.partition("nowhere.npz", tmp_path / "new" / "parts", 2)


class _KilledError(Exception):
    pass


class _Killer:
    """Ends a run when a stage begins, as a power cut would; counts stages."""

    def __init__(self, stage: str = "") -> None:
        self.stage = stage
        self.begun: list[str] = []

    def begin(self, stage: str, total: int | None = None) -> None:
        if self.stage and stage.startswith(self.stage):
            raise _KilledError
        self.begun.append(stage)

    def advance(self, amount: int) -> None:
        pass


@pytest.mark.parametrize(
    "stage", ["joining", "cutting", "repairing", "balancing", "writing x", "writing edges"]
)
def test_a_killed_run_continues(stage: str, tmp_path: Path) -> None:
    source: GraphSource = parse(SOURCE)
    wanted = PartitionSpec(shares=(0.5, 0.5), method="fennel")
    straight = partition(source, wanted, tmp_path / "straight")
    with pytest.raises(_KilledError):
        partition(source, wanted, tmp_path / "parts", _Killer(stage))
    assert not (tmp_path / "parts").exists()
    watcher = _Killer()
    assert partition(source, wanted, tmp_path / "parts", watcher) == straight
    assert "reading node to node" not in watcher.begun
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "straight"]


@pytest.mark.integration
def test_a_process_killed_for_real_continues(tmp_path: Path) -> None:
    source = "generated:nodes=60000,edges=1200000,features=64"
    folder = tmp_path / "parts"
    command = [sys.executable, "-m", "headrace", "partition", source, "--parts", "4"]
    command += ["--method", "fennel", "-o", str(folder), "--json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("repairing"):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not folder.exists()
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "reading" not in again.stderr
    assert invoke("graph", "verify", str(folder)).exit_code == 0
