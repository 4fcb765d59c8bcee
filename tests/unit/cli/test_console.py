"""--quiet, --verbose and colours; options that mean the same are called the same."""

from __future__ import annotations

import json
import re
import shutil
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import numba
import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from headrace import __version__
from headrace.cli import app, console
from headrace.cli.output import progress
from tests.unit.cli.test_help import COMMANDS

ROOT = Path(__file__).parents[3]
SIMULATE = ["simulate", "--cluster", "cluster.yaml", "--job", "job.yaml", "--iterations", "5"]
STAMP = re.compile(r"^ +\d+\.\d{3} s  ", re.MULTILINE)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("cluster.yaml", "job.yaml"):
        shutil.copy(ROOT / "examples" / "testbed" / name, tmp_path)
    return tmp_path


def call(*words: str, color: bool = False) -> Result:
    return CliRunner().invoke(app, list(words), color=color)


@cache
def tree() -> Any:
    """All commands; it takes a tenth of a second to make them."""
    return get_command(app)


def command(words: tuple[str, ...]) -> Any:
    found = tree()
    for word in words:
        found = found.commands[word]
    return found


def options(words: tuple[str, ...]) -> dict[str, Any]:
    """Options of a command by their long name."""
    found = command(words)
    params = found.get_params(found.context_class(found, info_name="headrace"))
    return {max(p.opts, key=len): p for p in params if p.param_type_name == "option"}


@pytest.mark.parametrize("words", [["-q", *SIMULATE], [*SIMULATE, "--quiet"]], ids=str)
def test_quiet_leaves_results_alone(words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert result.stdout == call(*SIMULATE).stdout


def test_errors_are_told_quietly_too() -> None:
    result = call("simulate", "-q", "--cluster", "no.yaml", "--job", "job.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: the cluster file no.yaml does not exist\n")


@pytest.mark.parametrize("words", [["-v", *SIMULATE], [*SIMULATE, "--verbose"]], ids=str)
def test_verbose_says_when(words: list[str]) -> None:
    result = call(*words)
    assert result.exit_code == 0, result.output
    lines = STAMP.sub("", result.stderr).splitlines()
    assert len(STAMP.findall(result.stderr)) == len(lines)
    assert lines[0].startswith(f"headrace {__version__}, Python 3.")
    assert "simulating 5 iterations under priority" in lines
    assert lines[-1] == "done"
    assert result.stdout == call(*SIMULATE).stdout


def test_loudness_does_not_outlive_a_command() -> None:
    call("-q", *SIMULATE)
    assert call(*SIMULATE).stderr


def test_json_is_json_however_loud() -> None:
    for loudness in ("-q", "-v"):
        json.loads(call(*SIMULATE, "--json", loudness).stdout)


def test_colours_and_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in call("plan", "--cluster", "no", "--job", "no", color=True).stderr
    monkeypatch.setenv("NO_COLOR", "1")
    result = call("plan", "--cluster", "no", "--job", "no", color=True)
    assert "\x1b[" not in result.output
    assert console.styled("x", fg="red") == "x"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_may_be_quiet_or_verbose(words: tuple[str, ...]) -> None:
    found = options(words)
    assert found["--quiet"].opts == ["--quiet", "-q"]
    assert found["--verbose"].opts == ["--verbose", "-v"]


def test_one_name_has_one_form() -> None:
    forms: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for words in COMMANDS:
        for name, option in options(words).items():
            forms[name].add(tuple(sorted(option.opts)))
    assert {name: found for name, found in forms.items() if len(found) > 1} == {}


def test_what_is_shared_is_described_alike() -> None:
    shared = ("--json", "--runs", "--address", "--config", "--set", "--no-tls", "--quiet")
    texts: dict[str, set[str]] = defaultdict(set)
    for words in COMMANDS:
        for name, option in options(words).items():
            if name in shared and words != ("logs",):  # its JSON is an object per line
                texts[name].add(f"{option.metavar} {option.help}")
    assert {name: found for name, found in texts.items() if len(found) > 1} == {}


def test_compiling_is_told_once_and_only_if_it_happens(capsys: pytest.CaptureFixture[str]) -> None:
    console.begin()
    add_one, add_two = (numba.njit(lambda x, n=n: x + n) for n in (1, 2))
    with progress.steps(1):
        assert add_one(1) + add_two(1) == 5
    assert capsys.readouterr().err.splitlines() == [progress.COMPILING]
    with progress.steps(1):
        add_one(1)
    assert capsys.readouterr().err == ""


def test_long_notes_are_broken_between_words_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    line = "peak-to-mean 1.16 from the stores"
    console.begin()
    console.note(line)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    console.note(line)
    assert capsys.readouterr().err == f"{line}\npeak-to-mean 1.16\nfrom the stores\n"


def test_steps_that_are_added_raise_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.steps(2, interpret=False) as begin:
        for name in ("profile", "plan", "plan with a cache"):
            begin(name)
    assert "[3/3] plan with a cache" in capsys.readouterr().err
