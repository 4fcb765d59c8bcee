"""Run folders: made, found, locked, and never seen half written."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace.core.errors import SpecError
from headrace.core.job import Role
from headrace.runtime.run_dir.run_dir import (
    SILENCE_S,
    Driver,
    RunDirectory,
    find_run,
    list_runs,
    runs_folder,
)
from headrace.runtime.run_dir.status import MachineStatus, RunState, Status, TaskStatus

NOON_S = 1_794_700_800.0


def status_of(run: RunDirectory, **fields: object) -> Status:
    """What a driver would write."""
    known = run.read_status().model_dump()
    return Status.model_validate(known | {"updated_s": NOON_S} | fields)


def test_a_new_run_has_a_name_a_lock_and_a_status(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path / "runs", "my job/3", NOON_S) as run:
        assert run.run_id.endswith("-my-job-3")
        assert run.path.parent == tmp_path / "runs"
        assert stat.S_IMODE(run.path.stat().st_mode) == 0o700
        status = run.read_status()
        assert status.run_id == run.run_id
        assert (status.state, status.job) == (RunState.STARTING, "my job/3")
        # Whatever the clock of its machine says.
        assert run.driver(status) is Driver.ALIVE
        written = (run.path / "status.json").stat().st_mtime
        os.utime(run.path / "status.json", times=(written, written - SILENCE_S - 1))
        assert run.driver(status) is Driver.SILENT
        assert run.driver_name().startswith("pid ")
        assert run.log("sampler1.0") == run.path / "logs" / "sampler1.0.log"
    assert run.driver(status) is Driver.DIED
    assert run.driver(status_of(run, state="done")) is Driver.ENDED


def test_runs_of_one_minute_have_different_names(tmp_path: Path) -> None:
    made = [RunDirectory.create(tmp_path, "a", NOON_S) for _ in range(3)]
    assert len({run.run_id for run in made}) == 3
    assert list_runs(tmp_path) == [run.run_id for run in made]
    assert (tmp_path / "latest").resolve() == made[-1].path.resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["latest", *(run.run_id for run in made)]
    )
    for run in made:
        run.close()


def test_finding_runs(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="there is no run in"):
        find_run(tmp_path / "nowhere")
    first, second = (RunDirectory.create(tmp_path, name, NOON_S) for name in ("one", "two"))
    assert find_run(tmp_path).path == second.path
    assert find_run(tmp_path, "latest").path == second.path
    assert find_run(tmp_path, first.run_id[:-1]).path == first.path
    assert find_run(tmp_path / "elsewhere", str(first.path)).path == first.path
    with pytest.raises(SpecError, match=r"2 runs begin with '20'.*-two, .*-one"):
        find_run(tmp_path, "20")
    with pytest.raises(SpecError, match="there is no run 'x'"):
        find_run(tmp_path, "x")
    for run in (first, second):
        run.close()


def test_where_runs_lie(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADRACE_RUNS", raising=False)
    assert runs_folder() == Path.home() / ".headrace" / "runs"
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path))
    assert runs_folder() == tmp_path
    assert runs_folder(tmp_path / "given") == tmp_path / "given"


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match="--runs"):
        RunDirectory.create(tmp_path / "file", "a", NOON_S)


def test_status_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "a", NOON_S) as run:
        written = status_of(
            run,
            state="running",
            figures={"epoch": 3, "loss": 0.5, "note": "nan"},
            machines=(MachineStatus(name="m0", nic_in_bytes_per_s=1e6),),
            tasks=(TaskStatus(name="store0", role=Role.STORE, machine="m0", rss_bytes=1e9),),
        )
        run.write_status(written)
        assert run.read_status() == written
        assert json.loads((run.path / "status.json").read_bytes())["version"] == 1


def test_a_reader_never_sees_half_a_status(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "a", NOON_S) as run:
        tasks = tuple(TaskStatus(name=f"store{i}", role=Role.STORE, machine="m") for i in range(50))
        full, ended = status_of(run, tasks=tasks), threading.Event()

        def write() -> None:
            for i in range(100):
                run.write_status(
                    full.model_copy(update={"iterations": i, "tasks": tasks[i % 50 :]})
                )
            ended.set()

        writer = threading.Thread(target=write)
        writer.start()
        seen = 0
        while not ended.is_set():
            seen = max(seen, run.read_status().iterations)
        writer.join()
        assert run.read_status().iterations == 99 >= seen


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2}'])
def test_a_status_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    with RunDirectory.create(tmp_path, "a", NOON_S) as run:
        (run.path / "status.json").write_text(text)
        with pytest.raises(SpecError, match="is not a status file of this headrace version"):
            run.read_status()


def test_events_and_reports_are_lines(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "a", NOON_S) as run:
        run.append_event("started", NOON_S, task="store0")
        run.append_event("ready", NOON_S + 1, task="store0")
        run.append_report({"loss": 0.5}, NOON_S, iterations=7)
        events = [json.loads(line) for line in run.events.read_text().splitlines()]
        assert events[1] == {"at_s": NOON_S + 1, "kind": "ready", "task": "store0"}
        expected = {"at_s": NOON_S, "figures": {"loss": 0.5}, "iterations": 7}
        assert json.loads(run.reports.read_text()) == expected


def test_a_killed_driver_is_noticed(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from headrace.runtime.run_dir.run_dir import RunDirectory\n"
        f"run = RunDirectory.create(pathlib.Path({str(tmp_path)!r}), 'a')\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        driver.stdout.readline()
        run = find_run(tmp_path)
        status = run.read_status()
        assert run.driver(status) is Driver.ALIVE
        assert str(driver.pid) in run.driver_name()
        driver.kill()
        driver.wait()
    assert run.driver(status) is Driver.DIED


def test_a_run_goes_on_only_if_nobody_else_could_change_it(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "a", NOON_S)
    with pytest.raises(SpecError, match=f"{run.run_id} is still running, driven by pid"):
        RunDirectory(run.path).reopen()
    run.close()
    for mode in (0o770, 0o702):
        run.path.chmod(mode)
        with pytest.raises(SpecError, match="can be changed by other users"):
            RunDirectory(run.path).reopen()
    run.path.chmod(0o755)
    with RunDirectory(run.path).reopen():
        assert run.driver(status_of(run)) is Driver.ALIVE


def test_a_run_of_somebody_else_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunDirectory.create(tmp_path, "a", NOON_S) as run:
        pass
    monkeypatch.setattr("os.geteuid", lambda: run.path.stat().st_uid + 1)
    with pytest.raises(SpecError, match="can be changed by other users"):
        run.reopen()
    monkeypatch.undo()
    lock = run.path / "driver.lock"
    lock.rename(run.path / "elsewhere")
    lock.symlink_to("elsewhere")
    with pytest.raises(SpecError, match="cannot be resumed"):
        run.reopen()


def test_what_tasks_of_another_plan_recorded_is_kept_apart(tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "job") as folder:
        for name in ("trace-store0.jsonl", "clocks.json", "plan.json"):
            (folder.path / name).write_text(name)
        folder.set_aside(2, "the plan before")
    aside = folder.path / "attempt-2"
    assert {path.name: path.read_text() for path in aside.iterdir()} == {
        "trace-store0.jsonl": "trace-store0.jsonl",
        "clocks.json": "clocks.json",
        "plan.json": "the plan before",
    }
    assert not (folder.path / "clocks.json").exists()
    assert folder.plan.read_text() == "plan.json"
