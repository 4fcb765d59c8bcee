from __future__ import annotations

from typing import Any

import pytest

from headrace.observability.report.reading import (
    command_of,
    curves_of,
    decisions_of,
    phases_of,
    read_lines,
    versions_of,
)


def test_lines_that_are_not_whole_are_left_out() -> None:
    assert read_lines(b'{"a": 1}\n[1]\n{"b":') == [{"a": 1}]


def test_phases_of_all_attempts() -> None:
    events: list[dict[str, Any]] = [
        {"at_s": 100.0, "kind": "attempt", "number": 1},
        {"at_s": 101.0, "kind": "phase", "phase": "placing"},
        {"at_s": 110.0, "kind": "phase", "phase": "running"},
        {"at_s": 130.0, "kind": "phase", "phase": "stopping"},
        {"at_s": 131.0, "kind": "phase", "phase": "ended"},
        {"at_s": 132.0, "kind": "phase", "phase": "placing"},
        {"at_s": 140.0, "kind": "phase", "phase": "running"},
        {"kind": "phase", "phase": "ended"},
    ]
    phases = phases_of(events, 100.0, 160.0)
    assert [(each.name, each.start_s, each.end_s) for each in phases] == [
        ("starting", 0, 10),
        ("training", 10, 30),
        ("stopping", 30, 32),
        ("starting", 32, 40),
        ("training", 40, 60),
    ]


def test_decisions_and_versions() -> None:
    events: list[dict[str, Any]] = [
        {"at_s": 100.0, "kind": "attempt", "number": 1, "versions": {"ray": "2.52"}},
        {"at_s": 130.0, "kind": "decision", "what": "resume", "line": "m1 is lost"},
        {"at_s": 131.0, "kind": "attempt", "number": 2},
        {"kind": "decision"},
    ]
    (moment,) = decisions_of(events, 100.0)
    assert (moment.at_s, moment.text) == (30.0, "m1 is lost")
    assert versions_of(events) == {"ray": "2.52"}


def test_curves_lie_over_the_finest_axis_that_all_values_have() -> None:
    reports: list[dict[str, Any]] = [
        {"figures": {"step": 10, "loss": 2.0}},
        {"figures": {"step": 20, "loss": 1.0, "epoch": 1, "note": "text", "flag": True}},
        {"figures": {"epoch": 1, "accuracy": 0.5}},
        {"figures": {"lr": 0.1, "loss_is": float("nan")}},
        {"figures": None},
    ]
    curves = {curve.name: curve for curve in curves_of(reports)}
    assert list(curves) == ["loss", "accuracy", "lr"]
    assert (curves["loss"].axis, curves["loss"].at) == ("step", (10, 20))
    assert (curves["accuracy"].axis, curves["accuracy"].values) == ("epoch", (0.5,))
    assert (curves["lr"].axis, curves["lr"].at) == ("report", (4,))


def test_long_curves_are_thinned_and_keep_their_end() -> None:
    reports = [{"figures": {"loss": float(n)}} for n in range(5001)]
    (curve,) = curves_of(reports)
    assert len(curve.values) <= 1001
    assert curve.values[-1] == 5000


def test_the_command_is_what_was_asked_without_secrets() -> None:
    command = command_of(
        {
            "graph": "/data/parts",
            "script": "/home/me/my train.py",
            "arguments": ["--epochs", "3", "--api-key", "abc", "--token=xyz", "last"],
            "config": {"fanouts": [10, 5], "wandb_token": "hidden", "a": [{"password": "x"}]},
            "track": ["mlflow:http://me:pw@host"],
            "tls": False,
            "max_restarts": 3,
            "checkpoint_every": 100,
            "replan": True,
            "traffic": "plan",
        }
    )
    assert command == (
        "headrace run --plan plan.json --graph /data/parts --checkpoint-every 100 --no-tls "
        "--replan --traffic plan --track mlflow:http://host "
        "--set 'fanouts=[10, 5]' --set wandb_token=... "
        """--set 'a=[{"password": "..."}]' """
        "'/home/me/my train.py' -- --epochs 3 --api-key ... --token=... last"
    )


@pytest.mark.parametrize("asked", [{}, {"config": None, "track": None, "arguments": None}])
def test_a_command_of_nearly_nothing(asked: dict[str, object]) -> None:
    assert command_of(asked).startswith("headrace run --plan plan.json")


def test_a_command_names_running_stores() -> None:
    command = command_of(
        {"script": "t.py", "is_local": True, "tls": True, "store_set": "/home/me/runs/stores/parts"}
    )
    assert command == "headrace run --local --stores parts t.py"
