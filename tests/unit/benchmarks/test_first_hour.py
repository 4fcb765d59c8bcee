"""What the benchmark of the first hour makes of its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import first_report
from benchmarks.first_hour import ROOT, WORST, find_pythons, rounded, summed_up
from benchmarks.performance_tables import first_hour


def figures_of(base_install_s: float) -> dict[str, Any]:
    return dict.fromkeys(WORST, 0.1) | {"base_install_s": base_install_s, "has_report": True}


@pytest.mark.parametrize(("slowest_s", "passed"), [(30.0, True), (61.0, False)])
def test_the_worst_python_counts(slowest_s: float, passed: bool) -> None:
    pythons = {"3.11": figures_of(20.0), "3.13": figures_of(slowest_s) | {"first_plan_s": None}}
    found = summed_up({"wheel_bytes": 800_000, "pythons": pythons})
    assert found["base_install_s"] == slowest_s
    assert found["first_plan_s"] == 0.1
    assert found["train_install_s"] is None
    assert found["passed"] is passed
    assert found["held"] == {"base_install_s": passed, "wheel_bytes": True, "import_s": True}


def test_seconds_are_rounded_everywhere() -> None:
    assert rounded({"a": 1.23456, "b": {"c": 2, "d": None}}) == {
        "a": 1.235,
        "b": {"c": 2, "d": None},
    }


def test_a_python_that_is_found_starts() -> None:
    for version, python in find_pythons().items():
        done = subprocess.run([python, "--version"], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(f"Python {version}.")


def test_the_page_has_a_row_for_each_python() -> None:
    result = {"wheel_bytes": 1, "pythons": {"3.11": figures_of(1.0), "3.13": figures_of(2.0)}}
    rows = "\n".join(first_hour(result))
    assert "| 3.11 | 1 s |" in rows
    assert "| 3.13 | 2 s |" in rows


def test_the_committed_figures_hold_the_limits() -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / "first_hour.json").read_text())
    assert result["passed"]
    assert result["has_report"]
    assert not result["is_quick"]
    assert {"3.11", "3.13"} <= set(result["pythons"])


def test_a_folder_that_can_be_reported_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("cluster", "job"):
        text = (ROOT / "examples" / "testbed" / f"{name}.yaml").read_text()
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["first_report.py", "rehearsed", "--without-plan"])
    first_report.main()
    assert {path.name for path in (tmp_path / "rehearsed").iterdir()} >= {
        "status.json",
        "trace.npz",
    }
