from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from headrace import cli
from headrace.api import doctor
from headrace.api.documents.schema import SCHEMA_KINDS, schema_text
from headrace.cli.errors import BUG_EXIT_CODE
from headrace.core.errors import DOCS_URL, MissingExtraError

ROOT = Path(__file__).parents[3]


def imported_by(code: str) -> set[str]:
    """Names of all modules a fresh interpreter has loaded after running some code."""
    code += "\nimport sys; print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stderr.split())


def test_importing_headrace_imports_nothing_heavy() -> None:
    loaded = imported_by("import headrace; headrace.__version__; dir(headrace)")
    assert not loaded & {"numba", "numpy", "pydantic", "yaml", "matplotlib", "typer", "rich"}


def test_loading_a_file_does_not_compile_anything() -> None:
    loaded = imported_by("import headrace; headrace.load_cluster")
    assert "pydantic" in loaded
    assert not loaded & {"numba", "matplotlib", "typer"}


@pytest.mark.parametrize("verb", ["", "simulate", "schema", "doctor"])
def test_help_imports_nothing_heavy(verb: str) -> None:
    argv = [word for word in ("headrace", verb, "--help") if word]
    loaded = imported_by(
        f"import sys; sys.argv = {argv}\n"
        "from headrace.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0"
    )
    assert "headrace.cli.commands.plan.simulate" in loaded
    assert not loaded & {"numba", "numpy", "matplotlib"}  # some versions of typer need pydantic


def test_python_m_headrace() -> None:
    command = [sys.executable, "-m", "headrace", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == f"headrace {headrace.__version__}\n"


def test_version_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == headrace.__version__
    assert project["scripts"]["headrace"] == "headrace.cli:main"


def test_no_verb_shows_the_help() -> None:
    result = CliRunner().invoke(cli.app, [])
    assert "simulate" in result.output


@pytest.mark.parametrize("kind", SCHEMA_KINDS)
def test_schema(kind: str) -> None:
    result = CliRunner().invoke(cli.app, ["schema", kind])
    assert result.exit_code == 0
    assert result.stdout == schema_text(kind)


def test_unknown_schema() -> None:
    result = CliRunner().invoke(cli.app, ["schema", "zzz"])
    assert result.exit_code == 2
    assert "try: use one of cluster, job, profile, placement, plan" in result.stderr


def run_main(monkeypatch: pytest.MonkeyPatch, error: Exception) -> int:
    def fail(kind: str) -> str:
        raise error

    monkeypatch.setattr("headrace.api.documents.schema.schema_text", fail)
    monkeypatch.setattr(sys, "argv", ["headrace", "schema", "job"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_errors_raised_on_purpose(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = MissingExtraError("no matplotlib", "pip install 'headrace[report]'")
    assert run_main(monkeypatch, error) == 4
    assert capsys.readouterr().err == (
        "error: no matplotlib\n  try: pip install 'headrace[report]'\n"
        f"  see: {DOCS_URL}reference/errors.md#a-part-that-is-not-installed\n"
    )


def test_a_bug_is_one_line_and_a_way_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    assert run_main(monkeypatch, KeyError("x\ny")) == BUG_EXIT_CODE
    assert capsys.readouterr().err == (
        "error: this is a bug in headrace (KeyError: 'x\\ny')\n"
        "  try: run it again with --verbose and report the output\n"
        f"  see: {DOCS_URL}reference/errors.md\n"
    )


def test_a_bug_in_debug_mode_is_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["headrace", "schema", "job"])
    monkeypatch.setattr("headrace.api.documents.schema.schema_text", lambda kind: {}[kind])
    with pytest.raises(KeyError):
        cli.main()


def test_nowhere_to_keep_compiled_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    error = RuntimeError("cannot cache function 'f': no locator available for file 'x.py'")
    assert run_main(monkeypatch, error) == 1
    assert "try: set NUMBA_CACHE_DIR" in capsys.readouterr().err


@pytest.mark.slow
def test_doctor() -> None:
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "numba cache" in result.stdout
    assert "The base works" in result.stdout


def test_doctor_json() -> None:
    result = CliRunner().invoke(cli.app, ["doctor", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["base_works"] is True
    parts = {part["name"]: part for part in found["parts"]}
    assert parts["numba"]["status"] == "works"
    assert parts["ray"]["group"] == "extra"
    assert parts["pymetis"]["group"] == "extra"
    assert set(parts["numpy"]) == {"name", "group", "status", "version", "purpose", "detail"}


def test_doctor_with_a_broken_base(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down() -> None:
        raise OSError("libLLVM.so: cannot open shared object file\nmore")

    monkeypatch.setattr(doctor, "_compile_something", break_down)
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 1
    assert "numba: libLLVM.so: cannot open shared object file" in result.stdout
    assert "The base does not work: see numba." in result.stdout


def test_doctor_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package in ("matplotlib", "ortools"):
            raise metadata.PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(metadata, "version", version)
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "matplotlib: pip install 'headrace[report]'" in result.stdout
    assert "ortools: pip install 'headrace[exact]'" in result.stdout


def test_doctor_on_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "OLDEST_PYTHON", (4, 0))
    result = CliRunner().invoke(cli.app, ["doctor"])
    assert result.exit_code == 1
    assert "python: use Python 3.11 to 3.13" in result.stdout
