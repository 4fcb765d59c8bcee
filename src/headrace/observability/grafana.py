"""Grafana dashboard of runs, as importable JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.observability import metrics
from headrace.observability.metrics import Metric

_SCHEMA_VERSION = 39
"""Schema version of Grafana 11; newer versions convert it on import."""

_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH = 24
"""Width of a dashboard in Grafana's grid columns."""

Query = tuple[str, str]
"""A PromQL expression, and the legend of its series."""


def dashboard() -> dict[str, Any]:
    """Create the dashboard; a variable selects runs."""
    panels = _rows(
        [
            _stat("Iterations", _sum(metrics.ITERATIONS)),
            _stat("Epoch", _max(metrics.EPOCH)),
            _stat("Samples per second", _sum(metrics.SPEED)),
            _stat("Iteration", _max(metrics.ITERATION_SECONDS), "s"),
            _stat("Trainer wait", f"avg({_series(metrics.IDLE_SHARE)})", "percentunit"),
            _stat("Tasks lost", _sum(metrics.TASKS, 'state="lost"')),
            _stat("Restarts", _count(metrics.RESTARTS)),
            _stat("Resumes", _count(metrics.RESUMES)),
        ],
        height=4,
    )
    panels += _rows(
        [
            _graph("Script metrics", [(_max(metrics.FIGURE, by="figure"), "{{figure}}")]),
            _graph("Seeds trained", [(_rate(metrics.SAMPLES, "run"), "{{run}}")], "cps"),
        ],
        first=4,
    )
    panels += _rows(
        [
            _graph(
                "Trainer wait for batches",
                [(_max(metrics.IDLE_SHARE, by="task"), "{{task}}")],
                "percentunit",
            ),
            _graph("Task utilisation", [(_rate(metrics.BUSY, "task"), "{{task}}")], "percentunit"),
            _graph("Steps", [(_rate(metrics.STEPS, "task"), "{{task}}")], "cps"),
        ],
        first=12,
    )
    panels += _rows(
        [
            _graph(
                "Traffic between machines",
                [(_rate(metrics.LINK_BYTES, "source, target"), "{{source}} to {{target}}")],
                "Bps",
            ),
            _graph(
                "NICs",
                [(_rate(metrics.NIC_BYTES, "machine, direction"), "{{machine}} {{direction}}")],
                "Bps",
            ),
            _graph("Memory", [(_max(metrics.MEMORY, by="task"), "{{task}}")], "bytes"),
        ],
        first=20,
    )
    panels += _rows(
        [
            _graph("Tasks by state", [(_sum(metrics.TASKS, by="state"), "{{state}}")]),
            _graph(
                "Recovery",
                [
                    (_count(metrics.RESTARTS), "restarts"),
                    (_count(metrics.RESUMES), "resumes"),
                    (_count(metrics.CHECKPOINTS), "checkpoints"),
                ],
            ),
            _graph(
                "Training paused for checkpoints",
                [(_rate(metrics.CHECKPOINT_SECONDS, "run"), "{{run}}")],
                "percentunit",
            ),
        ],
        first=28,
    )
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "uid": "headrace-run",
        "title": "headrace",
        "description": "headrace runs: throughput, waiting times, network traffic and recovery.",
        "tags": ["headrace"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "10s",
        "annotations": {"list": []},
        "templating": {"list": [_source_variable(), _run_variable()]},
        "panels": panels,
    }


# --- expressions ----------------------------------------------------------------------------------


def _series(metric: Metric, more: str = "") -> str:
    return f'{metric.exported}{{run=~"$run"{", " + more if more else ""}}}'


def _sum(metric: Metric, more: str = "", by: str = "") -> str:
    return f"sum{f' by ({by}) ' if by else ''}({_series(metric, more)})"


def _count(metric: Metric) -> str:
    """Sum of a counter that is only exported after its first event."""
    return f"{_sum(metric)} or vector(0)"


def _max(metric: Metric, by: str = "") -> str:
    return f"max{f' by ({by}) ' if by else ''}({_series(metric)})"


def _rate(metric: Metric, by: str) -> str:
    return f"sum by ({by}) (rate({_series(metric)}[$__rate_interval]))"


# --- panels ---------------------------------------------------------------------------------------


def _rows(panels: Sequence[dict[str, Any]], first: int = 0, height: int = 8) -> list[Any]:
    """Arrange panels of equal width side by side."""
    width = _WIDTH // len(panels)
    for number, panel in enumerate(panels):
        panel["gridPos"] = {"x": number * width, "y": first, "w": width, "h": height}
    return list(panels)


def _panel(kind: str, title: str, queries: Sequence[Query], unit: str) -> dict[str, Any]:
    return {
        "type": kind,
        "title": title,
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + n),
                "datasource": _SOURCE,
                "expr": expr,
                "legendFormat": legend,
            }
            for n, (expr, legend) in enumerate(queries)
        ],
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
    }


def _stat(title: str, expr: str, unit: str = "short") -> dict[str, Any]:
    panel = _panel("stat", title, [(expr, "")], unit)
    panel["options"] = {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "graphMode": "area",
        "colorMode": "value",
        "textMode": "auto",
        "justifyMode": "auto",
        "orientation": "auto",
        "wideLayout": True,
        "showPercentChange": False,
        "percentChangeColorMode": "standard",
    }
    return panel


def _graph(title: str, queries: Sequence[Query], unit: str = "short") -> dict[str, Any]:
    panel = _panel("timeseries", title, queries, unit)
    panel["options"] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel


# --- variables ------------------------------------------------------------------------------------


def _source_variable() -> dict[str, Any]:
    return {"type": "datasource", "name": "source", "label": "Source", "query": "prometheus"}


def _run_variable() -> dict[str, Any]:
    return {
        "type": "query",
        "name": "run",
        "label": "Run",
        "datasource": _SOURCE,
        "query": f"label_values({metrics.ITERATIONS.exported}, run)",
        "refresh": 2,
        "sort": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }
