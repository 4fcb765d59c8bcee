from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace import cli
from headrace.core.cluster import Cluster, Machine
from headrace.testbed import Testbed, state_file
from headrace.testbed.layout import Shape, lay_out


def bed(shape: Shape | None) -> Testbed:
    machine = Machine(name="m0", resources={"cpu": 4}, nic_in=12.5e6, nic_out=50e6)
    return Testbed(lay_out(Cluster(machines=(machine,)), "bed", "boot", False, (), shape))


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Of a testbed whose machines are only written down."""
    monkeypatch.setattr("headrace.testbed.network.link_bytes", lambda layout: {})
    monkeypatch.setattr("headrace.testbed.testbed.problems_of", lambda layout: [])
    return monkeypatch


def test_status_shows_limits(look: pytest.MonkeyPatch) -> None:
    look.setattr(state_file, "read", lambda name: bed(Shape(1.5, Path("/groups"))).layout)
    shown = CliRunner().invoke(cli.app, ["testbed", "status"]).stdout
    heading, machine = shown.splitlines()[1:3]
    assert heading.split()[-3:] == ["in", "out", "cores"]
    assert machine.split()[-5:] == ["100", "Mbps", "400", "Mbps", "1.5"]


def test_without_limits_none_are_shown(look: pytest.MonkeyPatch) -> None:
    look.setattr(state_file, "read", lambda name: bed(None).layout)
    shown = CliRunner().invoke(cli.app, ["testbed", "status"]).stdout
    assert "cores" not in shown


def test_a_card_needs_a_rate() -> None:
    result = CliRunner().invoke(cli.app, ["testbed", "nic", "m0"])
    assert result.exit_code == 2
    assert "--out 100Mbps" in result.stderr
