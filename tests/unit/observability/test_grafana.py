"""The dashboard is one that Grafana reads, and shows every metric."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headrace.observability.grafana import dashboard
from headrace.observability.metrics import METRICS


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]


def test_grafanas_own_classes_read_all_of_it() -> None:
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    cog = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    from grafana_foundation_sdk.cog.plugins import register_default_plugins

    register_default_plugins()
    made = json.loads(json.dumps(dashboard()))
    read = json.loads(cog.JSONEncoder().encode(models.Dashboard.from_json(made)))
    # What the classes do not know is missing in what they write.
    assert unknown(made, read) == []


def unknown(made: Any, read: Any, where: str = "dashboard") -> list[str]:
    """Where something of the first is not in the second."""
    if isinstance(made, dict) and isinstance(read, dict):
        return [
            problem
            for key, value in made.items()
            for problem in (
                unknown(value, read[key], f"{where}.{key}") if key in read else [f"{where}.{key}"]
            )
        ]
    if isinstance(made, list) and isinstance(read, list) and len(made) == len(read):
        pairs = enumerate(zip(made, read, strict=True))
        return [problem for n, (a, b) in pairs for problem in unknown(a, b, f"{where}[{n}]")]
    return [] if made == read else [f"{where}: {made!r} is {read!r}"]


def test_every_metric_is_shown_and_no_other() -> None:
    shown = set(re.findall(r"ray_headrace_\w+", " ".join(expressions())))
    assert shown == {metric.exported for metric in METRICS}


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert ids == list(range(1, len(ids) + 1))


def test_legends_name_labels_that_the_expression_keeps() -> None:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            kept = re.search(r"by \(([\w, ]+)\)", target["expr"])
            labels = set(kept[1].split(", ")) if kept else set()
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels
