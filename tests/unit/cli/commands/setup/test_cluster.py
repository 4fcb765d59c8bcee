"""`headrace cluster discover`, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from headrace.api import cluster
from headrace.api.documents.load import load_cluster
from headrace.cli import app
from headrace.core.cluster import Cluster, Machine
from headrace.runtime.cluster.connection import check_reachable

CLUSTER = Cluster(
    machines=(Machine(name="m0", resources={"cpu": 8.0}, nic_in=1.25e9, nic_out=1.25e9),)
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, bool, float | None]]:
    """What the verb asks for; it gets one machine."""
    calls: list[tuple[str | None, bool, float | None]] = []

    def find(
        address: str | None, log: Callable[[str], None], measure: bool, rate: float | None
    ) -> cluster.Discovery:
        calls.append((address, measure, rate))
        log("found 1 machines")
        return cluster.Discovery(CLUSTER, ("bandwidth: made up",))

    monkeypatch.setattr(cluster, "discover_cluster", find)
    return calls


def discover(*words: str) -> Result:
    return CliRunner().invoke(app, ["cluster", "discover", *words])


def test_the_file_goes_where_it_is_asked(
    asked: list[tuple[str | None, bool, float | None]], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    result = discover("-o", str(file), "--address", "10.0.0.1:6379")
    assert result.exit_code == 0, result.output
    assert f"wrote {file}: 1 machines" in result.output.replace("\n", "")
    assert file.read_text().startswith("# Written by headrace cluster discover.\n# bandwidth: made")
    assert load_cluster(file) == CLUSTER
    assert discover().stdout.endswith("nic_out: 10Gbps\n  labels: {}\n")
    assert asked == [("10.0.0.1:6379", True, None), (None, True, None)]


def test_bandwidth_and_json(asked: list[tuple[str | None, bool, float | None]]) -> None:
    found = json.loads(discover("--bandwidth", "10Gbps", "--no-bandwidth", "--json").stdout)
    assert found["cluster"]["machines"][0]["name"] == "m0"
    assert found["notes"] == ["bandwidth: made up"]
    assert asked == [(None, False, 1.25e9)]


@pytest.mark.parametrize("rate", ["fast", "0Gbps"])
def test_a_bandwidth_that_is_none(
    asked: list[tuple[str | None, bool, float | None]], rate: str
) -> None:
    result = discover("--bandwidth", rate)
    assert result.exit_code == 2
    assert "10Gbps" in result.output
    assert not asked


@pytest.mark.parametrize("address", ["auto", "local", "ray://head:10001/x", "head"])
def test_only_plain_addresses_are_tried(address: str) -> None:
    check_reachable(address)
