"""Files for Grafana and Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from headrace.cli import app
from headrace.runtime.cluster import prometheus

NODE = {"NodeID": "a", "Alive": True, "NodeManagerAddress": "10.0.0.1", "MetricsExportPort": 80}


def cluster_of(monkeypatch: pytest.MonkeyPatch, *nodes: dict[str, Any]) -> None:
    @contextmanager
    def connected(address: str | None) -> Iterator[Any]:
        assert address == "head:6379"
        yield SimpleNamespace(nodes=lambda: list(nodes))

    monkeypatch.setattr(prometheus, "connected", connected)


def test_a_dashboard_is_printed() -> None:
    result = CliRunner().invoke(app, ["dashboard"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["title"] == "headrace"


def test_every_node_is_scraped(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster_of(monkeypatch, NODE, {**NODE, "NodeID": "b", "NodeManagerAddress": "10.0.0.2"})
    result = CliRunner().invoke(app, ["dashboard", "--prometheus", "--address", "head:6379"])
    assert result.exit_code == 0
    (scraped,) = yaml.safe_load(result.stdout)["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": ["10.0.0.1:80", "10.0.0.2:80"]}]


def test_a_cluster_without_endpoints_is_told_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster_of(monkeypatch, {**NODE, "MetricsExportPort": -1})
    result = CliRunner().invoke(app, ["dashboard", "--prometheus", "--address", "head:6379"])
    assert result.exit_code == 2
    assert "headrace[metrics]" in result.stderr
