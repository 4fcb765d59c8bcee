"""Shells complete commands, options and their values."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.api.documents.schema import SCHEMA_KINDS
from headrace.cli import app, completions
from headrace.graph.build.encoding_choice import FEATURE_FORMATS
from headrace.graph.partitioners.select import METHODS as PARTITIONERS
from headrace.planner.methods import PLACEMENT_METHODS
from headrace.policies.flow import FLOW_POLICIES
from tests.unit.cli.test_main import ROOT, imported_by


def completed(line: str) -> list[str]:
    """What bash proposes at the end of a line."""
    words = line.split(" ")
    env = {
        "_HEADRACE_COMPLETE": "complete_bash",
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    result = CliRunner().invoke(app, [], prog_name="headrace", env=env)
    assert result.exit_code == 0, result.output
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "proposed"),
    [
        ("headrace pl", ["plan"]),
        ("headrace testbed s", ["status"]),
        ("headrace plan --met", ["--method"]),
        ("headrace plan --qu", ["--quiet"]),
        ("headrace plan --method e", ["etp", "exact"]),
        ("headrace plan --policy m", ["maxmin", "matching", "mrtf", "mrtf-exclusive"]),
        ("headrace plan --seed-mix l", ["local-first"]),
        ("headrace simulate --compare oes,max", ["oes,maxmin"]),
        ("headrace partition --method k", ["kaminpar"]),
        ("headrace schema cl", ["cluster"]),
    ],
)
def test_bash(line: str, proposed: list[str]) -> None:
    assert completed(line) == proposed


@pytest.mark.parametrize("verb", ["status", "report", "logs", "export", "run --resume"])
def test_runs_are_proposed_the_newest_first(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("20261114-0900-sage", "20261115-0900-sage"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path))
    found = completed(f"headrace {verb} 2026")
    assert found == ["20261115-0900-sage", "20261114-0900-sage"]
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "none"))
    assert completed(f"headrace {verb} 2026") == []
    assert completed(f"headrace status --runs {tmp_path} 20261114") == ["20261114-0900-sage"]


def test_names_are_those_of_the_code() -> None:
    assert set(completions.POLICIES) == set(FLOW_POLICIES)
    assert set(completions.METHODS) == set(PLACEMENT_METHODS)
    assert set(completions.PARTITIONERS) == set(PARTITIONERS)
    assert completions.FEATURE_TYPES == FEATURE_FORMATS
    assert set(completions.KINDS) == set(SCHEMA_KINDS)
    # What follows imports torch: its text is read instead.
    models = (ROOT / "src/headrace/api/inference.py").read_text()
    assert all(f'"{name}": ' in models for name in completions.MODELS)


def test_completing_imports_nothing_heavy() -> None:
    loaded = imported_by(
        "import os, sys; sys.argv = ['headrace']\n"
        "os.environ |= {'_HEADRACE_COMPLETE': 'complete_bash', 'COMP_CWORD': '3',\n"
        "               'COMP_WORDS': 'headrace plan --policy o'}\n"
        "from headrace.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0"
    )
    assert not loaded & {"numba", "numpy", "torch", "ray", "matplotlib"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_HEADRACE_COMPLETE" in script_for(shell, monkeypatch)


def script_for(shell: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What people put into their shell; its name is an argument in typer's own tests too."""
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = CliRunner().invoke(app, ["--show-completion", shell], prog_name="headrace")
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_in_bash_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "headrace"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace "$@"\n')
    command.chmod(0o755)
    lines = (
        script_for("bash", monkeypatch),
        "complete -p headrace >/dev/null || exit 1",
        "COMP_WORDS=(headrace plan --policy o) COMP_CWORD=3",
        "_headrace_completion headrace",
        'echo "${COMPREPLY[@]}"',
    )
    path = os.pathsep.join((str(tmp_path), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=os.environ | {"PATH": path},
    )
    assert done.stdout.split() == ["oes", "omcoflow"], done.stderr


@pytest.mark.parametrize("verb", ["stores down", "stores status", "run --stores"])
def test_running_stores_are_proposed(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cora", "parts"):
        (tmp_path / "stores" / name).mkdir(parents=True)
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path))
    assert completed(f"headrace {verb} ") == ["cora", "parts"]
    assert completed("headrace run --resume ") == []
