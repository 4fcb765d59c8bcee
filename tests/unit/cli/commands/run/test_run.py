"""`headrace run` with scripts that need no graph."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.errors import RunError
from headrace.runtime.run_dir.run_dir import RunDirectory, find_run
from headrace.runtime.run_dir.status import RunState
from tests.unit.graph.small_graphs import homogeneous, write

pytestmark = pytest.mark.integration

REPORTS = """
import sys, headrace
print("script says", *sys.argv[1:])
for epoch in (1, 2):
    headrace.report(epoch=epoch, loss=1 / epoch)
"""


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["run", *map(str, arguments)])


@pytest.fixture(autouse=True)
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path / "runs"))


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace", "run", "--local", *map(str, arguments)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)


HANG_S = 240.0


def script(folder: Path, text: str) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def has_ended(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def read_numbers(path: Path, count: int) -> list[int]:
    end_s = time.monotonic() + HANG_S
    while time.monotonic() < end_s:
        if path.exists() and len(path.read_text().split()) == count:
            return [int(word) for word in path.read_text().split()]
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")


def test_reports_are_lines_and_output_is_the_scripts(tmp_path: Path) -> None:
    process = start(script(tmp_path, REPORTS), "--", "--epochs", "2")
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert out == "script says --epochs 2\n"
    *said, note, page = err.splitlines()
    assert [line for line in said if line.startswith("epoch")] == [
        "epoch 1  loss 1",
        "epoch 2  loss 0.5",
    ]
    assert note.startswith("note: the script requested no batch from a headrace loader")
    assert page.endswith("docs/howto/training.md#from-a-pyg-script-to-a-headrace-script")


def test_json_is_alone_on_standard_output(tmp_path: Path) -> None:
    process = start(script(tmp_path, REPORTS), "--json")
    out, err = process.communicate(timeout=HANG_S)
    summary = json.loads(out)
    assert summary["exit_code"] == process.returncode == 0
    assert [report["loss"] for report in summary["reports"]] == [1.0, 0.5]
    assert "script says" in err
    folder = Path(summary["folder"])
    status = json.loads((folder / "status.json").read_text())
    assert (status["state"], status["figures"]["loss"]) == ("done", 0.5)
    assert (folder / "logs" / "trainer0.log").read_text() == "script says\n"


def test_a_terminal_shows_a_bar_and_what_the_script_prints(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headrace", "run", "--local"]
    path = script(tmp_path, REPORTS)
    process = subprocess.Popen([*command, str(path)], stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # how Linux says that nobody writes any more
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait(HANG_S) == 0
    assert b"script says" in shown
    assert b"epoch 2  loss 0.5" in shown


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, "exited with code 3"),
        ("raise ValueError('no such luck')", 1, "ValueError: no such luck"),
        ("import os; os.kill(os.getpid(), 9)", 137, "there is no checkpoint to resume from"),
        ("import headrace; headrace.open_graph('none')", 2, "error: trainer on "),
    ],
)
def test_failures_have_the_code_of_the_script(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    process = start("--json", script(tmp_path, text))
    out, err = process.communicate(timeout=HANG_S)
    assert json.loads(out)["exit_code"] == process.returncode == code
    assert said in err
    assert "runpy" not in err


def test_what_cannot_run_is_said(tmp_path: Path) -> None:
    path = script(tmp_path, "")
    write(homogeneous(), tmp_path / "parts", 2)
    for arguments, problem in (
        ((path,), "--local uses only this machine"),
        (("--local", tmp_path / "none.py"), "there is no script"),
        (("--local", path, "--stores", "1"), "need a partitioned graph"),
        (("--local", path, "--dry-run", "--elastic"), "omit --dry-run, --elastic"),
        (("--local", path, "--graph", "a", "--parts", "b"), "one of them"),
        (("--local", path, "--set", "epochs=[1"), "expected ',' or ']'"),
        (("--local", path, "--parts", tmp_path), "manifest"),
        (("--local", path, "--parts", tmp_path / "parts", "--stores", "3"), "has 2 partitions"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, result.output
        assert problem in result.output


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device", "/runs/plan.json"), RunError("no", "yes")]
)
def test_a_run_that_fails_before_its_tasks_has_the_status_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr("headrace.runtime.controller.run.run_attempts", fail)
    result = invoke("--local", script(tmp_path, REPORTS))
    assert result.exit_code in (1, RunError.exit_code)
    status = find_run(tmp_path / "runs").read_status()
    assert status.state is RunState.FAILED
    assert status.error is not None
    assert status.error.problem in ("no", f"OSError: {error}")


def test_a_local_run_has_settings_and_either_name_of_the_graph(tmp_path: Path) -> None:
    write(homogeneous(), tmp_path / "parts", 2)
    text = "def train_func(ctx): print('epochs', ctx.config['epochs'], ctx.graph.num_parts)"
    path = script(tmp_path, text)
    process = start("--graph", tmp_path / "parts", "--stores", "0", "--set", "epochs=3", path)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert "epochs 3 2" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_processes_end_with_the_run(tmp_path: Path, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    path = script(
        tmp_path,
        f"""
import os, subprocess, sys, time
code = "import sys; sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
open({str(pids)!r}, "w").write(f"{{os.getpid()}} {{child.pid}}")
time.sleep(100)
""",
    )
    process = start(path)
    numbers = read_numbers(pids, 2)
    process.send_signal(number)
    err = process.communicate(timeout=HANG_S)[1]
    end_s = time.monotonic() + 60
    while not all(map(has_ended, numbers)) and time.monotonic() < end_s:
        time.sleep(0.05)
    assert all(map(has_ended, numbers))
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "Traceback" not in err


def test_a_run_of_a_plan_needs_its_graph(tmp_path: Path) -> None:
    path = script(tmp_path, "")
    for arguments, problem in (
        (("--plan", "plan.json", path), "give --graph"),
        (("--plan", "plan.json", "--local", path), "needs either --plan or --local"),
        (("--plan", tmp_path / "none.json", "--graph", "parts", path), "none.json"),
        (("--plan", "plan.json", "--graph", "parts", "--job", "j", path), "or use --auto"),
        (("--auto", path), "give --graph"),
        (("--auto", "--plan", "plan.json", path), "--auto creates and runs its own plan"),
        (("--auto", "--graph", tmp_path, "--job", tmp_path / "none.yaml", path), "none.yaml"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2, result.output
        assert problem in result.output


def test_settings_come_from_a_file_and_from_the_command_line(tmp_path: Path) -> None:
    from headrace.cli.commands.run.run import read_settings
    from headrace.core.errors import SpecError

    path = tmp_path / "config.yaml"
    path.write_text("lr: 0.1\nhidden: 16\n")
    assert read_settings(path, ["lr=0.5", "name=sage"]) == {
        "lr": 0.5,
        "hidden": 16,
        "name": "sage",
    }
    assert read_settings(None, []) == {}
    for settings in (["lr"], ["=1"], ["x=[1"]):
        with pytest.raises(SpecError):
            read_settings(None, settings)
    path.write_text("- 1\n")
    with pytest.raises(SpecError, match="no settings"):
        read_settings(path, [])


def test_what_cannot_be_resumed_is_said(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "job") as folder:
        pass
    for arguments, problem in (
        (["--resume", folder.run_id], "it has no run.json"),
        (["--resume", "20200101"], "there is no run '20200101'"),
        (["--resume", folder.run_id, "--local"], "--resume continues a run with its options"),
        ([], "a run requires a script"),
    ):
        result = invoke(*arguments, "--runs", tmp_path)
        assert result.exit_code == 2
        assert problem in " ".join(result.output.split())
