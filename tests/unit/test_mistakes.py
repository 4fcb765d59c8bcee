"""Typical mistakes: a line with the problem, one with a remedy, one with a page; no traceback."""

from __future__ import annotations

import errno
import re
import shutil
import socket
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.errors import DOCS_URL
from headrace.runtime.run_dir.run_dir import RunDirectory
from tests.unit.cli.made_up_run import made_up_status
from tests.unit.typical_mistakes import ERRORS, MISTAKES, SPECS, Mistake

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a cluster, a job, a script and a run that goes on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name in ("cluster.yaml", "job.yaml", "profile.yaml"):
        shutil.copy(ROOT / "examples" / "testbed" / name, tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    with RunDirectory.create(tmp_path / "runs", "sage") as run:
        run.write_status(made_up_status(run.run_id))
    return tmp_path


def told(words: str, code: int) -> list[str]:
    """The three lines that a mistake is answered with."""
    result = CliRunner().invoke(app, words.split())
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    lines = result.stderr.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("error: "))
    problem, remedy, page = lines[begin:]
    assert remedy.startswith("  try: ")
    assert page.startswith(f"  see: {DOCS_URL}")
    return [problem, remedy, page.removeprefix(f"  see: {DOCS_URL}")]


def test_there_are_thirty() -> None:
    assert len({mistake.name for mistake in MISTAKES}) == len(MISTAKES) >= 30


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_a_mistake_is_answered_with_a_remedy(mistake: Mistake, folder: Path) -> None:
    if mistake.needs and find_spec(mistake.needs) is None:
        pytest.skip(f"needs {mistake.needs}")
    for name, text in mistake.writes.items():
        (folder / name).write_text(text)
    for name, old, new in mistake.edits:
        path = folder / name
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))
    problem, remedy, page = told(mistake.words, mistake.code)
    assert mistake.problem in problem
    assert mistake.remedy in remedy
    assert page == mistake.page


@pytest.mark.parametrize(
    "words", [f"simulate {SPECS} --gantt g.png", "partition no.npz --parts 2 -o p --plot p.png"]
)
def test_a_missing_extra(words: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    problem, remedy, page = told(words, code=4)
    assert "charts need matplotlib, which is not installed" in problem
    assert "pip install 'headrace[report]'" in remedy
    assert page == f"{ERRORS}#a-part-that-is-not-installed"


def test_no_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")
    problem, remedy, page = told("testbed up --cluster cluster.yaml --name nobodys", code=2)
    assert "network namespaces require root" in problem
    assert "run it with sudo" in remedy
    assert page == "howto/testbed.md"


def test_a_report_of_a_run_that_goes_on(folder: Path) -> None:
    with RunDirectory.create(folder / "runs", "later") as run:
        run.write_status(made_up_status(run.run_id))
        problem, remedy, page = told(f"report {run.run_id}", code=2)
    assert f"run {run.run_id} is not over yet" in problem
    assert "watch it with `headrace top`" in remedy
    assert page == "howto/reports.md"


def test_a_plan_of_another_cluster(folder: Path) -> None:
    made = CliRunner().invoke(app, f"plan {SPECS} --method ifs --policy maxmin -o p.json".split())
    assert made.exit_code == 0, made.output
    shutil.copy(ROOT / "examples" / "hetero" / "cluster.yaml", folder / "other.yaml")
    words = "simulate --cluster other.yaml --job job.yaml --placement p.json"
    problem, remedy, _ = told(words, code=2)
    assert "the placement names machine 'm0', which the cluster does not have" in problem
    assert "use one of gtx-0" in remedy


def failing(monkeypatch: pytest.MonkeyPatch, fail: Callable[[], object]) -> None:
    """Let `headrace schema` meet something."""
    monkeypatch.setattr("headrace.api.documents.schema.schema_text", lambda kind: fail())


def test_port_in_use(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first:
        failing(monkeypatch, lambda: socket.create_server(first.getsockname()).close())
        problem, remedy, _ = told("schema job", code=1)
    assert "the port is in use by another program" in problem
    assert "choose another port" in remedy


def test_another_python_on_the_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")

    def refuse(**options: object) -> None:
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.52.0\n    Python: "
            "3.12.4\nThis process on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    "
            "Python: 3.11.9\n"
        )

    monkeypatch.setattr(ray, "init", refuse)
    problem, remedy, _ = told("cluster discover", code=2)
    assert "the cluster has Ray 2.52.0 and Python 3.12.4, this machine has Ray 2.60.0" in problem
    assert "this machine has Ray 2.60.0 and Python" in problem
    assert "use Python 3.12.4 here, with `pip install ray==2.52.0`" in remedy


@pytest.mark.parametrize(
    ("error", "problem", "code"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "p/x.npy"),
            "no space left .* p/x.npy",
            1,
        ),
        (PermissionError(errno.EACCES, "Permission denied", "a.yaml"), "a.yaml: permission", 2),
        (MemoryError(), "not enough memory", 1),
        (ModuleNotFoundError("No module", name="torch.nn"), "torch is not installed", 4),
        (KeyboardInterrupt(), "", 130),
    ],
    ids=["disk full", "no permission", "memory full", "no torch", "Ctrl-C"],
)
def test_what_python_and_the_system_say(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    problem: str,
    code: int,
) -> None:
    def fail() -> None:
        raise error

    failing(monkeypatch, fail)
    if problem:
        assert re.search(problem, told("schema job", code)[0])
    else:
        assert CliRunner().invoke(app, ["schema", "job"]).exit_code == code


def test_verbose_shows_where(folder: Path) -> None:
    result = CliRunner().invoke(app, ["plan", "--verbose", "--cluster", "no", "--job", "job.yaml"])
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "the cluster file no does not exist" in result.stderr
