"""Parsing of a run directory's files: phases, decisions, metrics, versions and command."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.core.report import Curve, Moment, Phase
from headrace.observability.passwords import without_passwords

AXES = ("step", "iteration", "epoch")
"""Metrics that can serve as the x axis, finest first."""

_TRAINING, _STOPPING = "running", ("stopping", "ended")
_MOST_POINTS = 1000
_ACCURACY_RANK = 1
_HIDDEN = "..."
_SECRET = re.compile(r"pass(word|wd)?|secret|token|credential|api[_-]?key", re.IGNORECASE)


def read_lines(data: bytes) -> list[dict[str, Any]]:
    """Parse JSON lines, skipping incomplete lines of killed processes."""
    found = []
    for line in data.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def phases_of(events: Iterable[Mapping[str, Any]], began_s: float, end_s: float) -> list[Phase]:
    """Phases of all attempts in order: starting, training, stopping."""
    changes: list[tuple[float, str]] = [(0.0, "starting")]
    for event in events:
        if event.get("kind") != "phase" or not isinstance(event.get("at_s"), int | float):
            continue
        phase = event.get("phase")
        name = "training" if phase == _TRAINING else "starting"
        if phase in _STOPPING:
            name = "stopping"
        if name != changes[-1][1]:
            changes.append((max(event["at_s"] - began_s, changes[-1][0]), name))
    length_s = max(end_s - began_s, changes[-1][0])
    ends = [*(start_s for start_s, _ in changes[1:]), length_s]
    return [
        Phase(name=name, start_s=start_s, end_s=stop_s)
        for (start_s, name), stop_s in zip(changes, ends, strict=True)
        if stop_s > start_s
    ]


def decisions_of(events: Iterable[Mapping[str, Any]], began_s: float) -> list[Moment]:
    """Logged decisions about faults."""
    return [
        Moment(at_s=max(0.0, event["at_s"] - began_s), text=str(event["line"]))
        for event in events
        if event.get("kind") == "decision"
        and isinstance(event.get("at_s"), int | float)
        and "line" in event
    ]


def versions_of(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Software versions of the last attempt."""
    found: dict[str, str] = {}
    for event in events:
        versions = event.get("versions")
        if event.get("kind") == "attempt" and isinstance(versions, Mapping):
            found = {str(name): str(version) for name, version in versions.items()}
    return found


def curves_of(reports: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Curves of reported metrics over the finest reported axis; losses first, then accuracies."""
    series: dict[str, list[tuple[Mapping[str, Any], int, float]]] = {}
    for number, report in enumerate(reports, start=1):
        figures = report.get("figures")
        if not isinstance(figures, Mapping):
            continue
        for name, value in figures.items():
            if name not in AXES and _is_number(value):
                series.setdefault(str(name), []).append((figures, number, float(value)))
    curves = []
    for name, points in series.items():
        axis = next((a for a in AXES if all(_is_number(f.get(a)) for f, _, _ in points)), "report")
        kept = _thinned(points)
        at = tuple(float(n if axis == "report" else f[axis]) for f, n, _ in kept)
        curves.append(Curve(name=name, axis=axis, at=at, values=tuple(v for _, _, v in kept)))
    return sorted(curves, key=lambda curve: _rank(curve.name))


def curve_over_bytes(
    reports: Sequence[Mapping[str, Any]], total_bytes: Sequence[float]
) -> Curve | None:
    """The reported accuracy over the bytes that machines had exchanged by then.

    Args:
        reports: Lines of `reports.jsonl`.
        total_bytes: Bytes between machines up to each iteration.

    Returns:
        A curve in megabytes; None without an accuracy, or without traffic.
    """
    if not len(total_bytes) or not total_bytes[-1]:
        return None
    name, points = "", []
    for report in reports:
        figures, num = report.get("figures"), report.get("iterations")
        if not isinstance(figures, Mapping) or not isinstance(num, int) or num < 1:
            continue
        name = name or next((str(key) for key in figures if _rank(str(key)) == _ACCURACY_RANK), "")
        if _is_number(figures.get(name)):
            moved_bytes = float(total_bytes[min(num, len(total_bytes)) - 1])
            points.append((moved_bytes / 1e6, float(figures[name])))
    if len(points) < 2:
        return None
    kept = _thinned(points)
    at, values = tuple(each[0] for each in kept), tuple(each[1] for each in kept)
    return Curve(name=name, axis="MB between machines", at=at, values=values)


_PLANNED_OPTIONS = ("address", "working_dir", "pip", "cache")
"""Options of runs of a plan."""


def command_of(asked: Mapping[str, Any]) -> str:
    """Reconstruct the command from the content of `run.json`, with secrets masked."""
    is_local = bool(asked.get("is_local"))
    words = ["headrace", "run", *(["--local"] if is_local else ["--plan", "plan.json"])]
    options = {name: f"--{name.replace('_', '-')}" for name in _PLANNED_OPTIONS}
    if is_local:
        options = {"num_stores": "--stores", "num_samplers": "--samplers"}
    options = {"graph": "--graph", **options, "checkpoint_every": "--checkpoint-every"}
    for name, option in options.items():
        if asked.get(name) is not None:
            words += [option, str(asked[name])]
    if asked.get("store_set") is not None:
        words += ["--stores", str(asked["store_set"]).rpartition("/")[2]]
    elif asked.get("tls") is is_local:
        words.append("--tls" if is_local else "--no-tls")
    if asked.get("max_restarts") not in (None, 3):
        words += ["--max-restarts", str(asked["max_restarts"])]
    flags = ("elastic", "replan", "independent", "allow_nan")
    words += [f"--{name.replace('_', '-')}" for name in flags if asked.get(name)]
    if asked.get("traffic") not in (None, "none"):
        words += ["--traffic", str(asked["traffic"])]
    for tool in asked.get("track") or ():
        words += ["--track", without_passwords(str(tool))]
    for key, value in (asked.get("config") or {}).items():
        shown = _shown(str(key), value)
        words += ["--set", f"{key}={shown if shown == _HIDDEN else json.dumps(shown)}"]
    words.append(str(asked.get("script")))
    arguments = [str(word) for word in asked.get("arguments") or ()]
    return shlex.join([*words, *(["--", *_masked(arguments)] if arguments else [])])


def _shown(key: str, value: Any) -> Any:
    """Mask secrets in a setting, recursively."""
    if _SECRET.search(key):
        return _HIDDEN
    if isinstance(value, Mapping):
        return {name: _shown(str(name), each) for name, each in value.items()}
    if isinstance(value, list):
        return [_shown("", each) for each in value]
    return without_passwords(value) if isinstance(value, str) else value


def _masked(arguments: Sequence[str]) -> list[str]:
    """Mask values of script options that name a secret."""
    masked: list[str] = []
    hides = False
    for word in arguments:
        name, _, value = word.partition("=")
        is_secret = name.startswith("-") and bool(_SECRET.search(name))
        if hides:
            masked.append(_HIDDEN)
        else:
            masked.append(f"{name}={_HIDDEN}" if is_secret and value else without_passwords(word))
        hides = is_secret and not value and not hides
    return masked


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _thinned(points: list[Any]) -> list[Any]:
    step = -(-len(points) // _MOST_POINTS)
    return [*points[:-1:step], points[-1]]


def _rank(name: str) -> int:
    lower = name.lower()
    return 0 if "loss" in lower else _ACCURACY_RANK if "acc" in lower else 2
