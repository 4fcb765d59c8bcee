from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.report import Report
from headrace.runtime.run_dir.run_dir import RunDirectory


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run that has not got far."""
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path))
    with RunDirectory.create(tmp_path, "sage") as folder:
        return folder


def test_the_newest_run_is_reported_in_its_folder(run: RunDirectory) -> None:
    result = CliRunner().invoke(app, ["report"])
    assert result.exit_code == 0, result.output
    assert "Too few iterations to measure." in result.stdout
    assert "Missing in this report" in (run.path / "report.html").read_text()
    Report.model_validate_json((run.path / "report.json").read_bytes())


def test_elsewhere_as_json_and_in_a_browser(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    page = tmp_path / "page.html"
    words = ["report", run.run_id, "-o", str(page), "--json", "--open"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["run_id"] == run.run_id
    assert summary["page"] == str(page)
    assert Path(summary["figures"]).name == "page.json"
    assert opened == [page.as_uri()]


def test_what_cannot_be_written_is_said_at_once(run: RunDirectory, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", "-o", str(tmp_path / "no" / "page.html")])
    assert result.exit_code == 2
    assert "is not a directory" in result.stderr
