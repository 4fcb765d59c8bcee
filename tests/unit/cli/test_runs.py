"""`headrace status`, `top` and `logs` show what lies in a run's folder."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from headrace.api.run_status import Driver, RunView
from headrace.cli import app
from headrace.cli.output.run_rows import doing, fitting_rows
from headrace.cli.output.run_view import picture
from headrace.core.cluster import Cluster, Machine
from headrace.runtime.run_dir.run_dir import RunDirectory
from headrace.runtime.run_dir.status import Failure, RunState, TaskState
from tests.unit.cli.made_up_run import NOON_S, made_up_status


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDirectory]:
    """A run that this process drives."""
    monkeypatch.setenv("HEADRACE_RUNS", str(tmp_path))
    with RunDirectory.create(tmp_path, "sage") as folder:
        notify(folder)
        yield folder


def notify(run: RunDirectory, **changes: Any) -> None:
    """Write a status of this moment."""
    changes = {"updated_s": time.time()} | changes
    run.write_status(made_up_status(run.run_id).model_copy(update=changes))


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def draw(run: RunDirectory, size: tuple[int, int], num_machines: int, **kwargs: Any) -> list[str]:
    """Lines of the picture of a made-up run."""
    status = made_up_status(run.run_id, num_machines=num_machines, num_trainers=num_machines)
    view = RunView(run, status, Driver.ALIVE, NOON_S, {"m0": (1.25e9, 1.25e9)})
    file = io.StringIO()
    Console(file=file, width=size[0], highlight=False).print(picture(view, size, **kwargs))
    return file.getvalue().splitlines()


def test_status_says_how_it_goes(run: RunDirectory) -> None:
    result = call("status")
    assert result.exit_code == 0, result.output
    assert f"{run.run_id}  running for" in result.output
    assert "iteration 4,210" in result.output
    assert "trainers wait 12% for sampling" in result.output
    assert "loss 0.4874  note [bold]" in result.output
    assert "5 sampling, 4 serving, 2 training, 2 waiting, on 4 machines" in result.output
    assert str(run.path) in result.output.replace("\n", "")


def test_what_was_done_about_faults_is_shown(run: RunDirectory) -> None:
    notify(run, attempt=2, restarts=1, last_decision="m3 is lost: gone: resuming")
    for verb in ("status", "top"):
        assert "attempt 2, 1 restarts  ·  m3 is lost: gone: resuming" in call(verb).output


def test_status_as_json(run: RunDirectory) -> None:
    for verb in ("status", "top"):
        summary = json.loads(call(verb, run.run_id, "--json").output)
        assert summary["driver"] == "alive"
        assert summary["tasks"][0]["name"] == "store0"
        assert summary["folder"] == str(run.path)


@pytest.mark.parametrize(
    ("state", "code"),
    [(RunState.DONE, 0), (RunState.FAILED, 7), (RunState.INTERRUPTED, 130)],
)
def test_exit_codes(run: RunDirectory, state: RunState, code: int) -> None:
    error = Failure(problem="store0 on m0 is gone", remedy="look") if code == 7 else None
    notify(run, state=state, error=error)
    for verb in ("status", "top"):
        result = call(verb)
        assert result.exit_code == code
        assert f"{state} after" in result.output
        assert ("store0 on m0 is gone\n  try: look" in result.output) == (code == 7)


def test_a_driver_that_died_is_told(run: RunDirectory) -> None:
    run.close()
    result = call("status")
    assert result.exit_code == 7
    assert "driver died after" in result.output
    assert "is gone; the run ended with it in state running" in result.output
    assert f"headrace logs {run.run_id} --errors" in result.output


def test_a_silent_driver_is_told(run: RunDirectory) -> None:
    past_s = time.time() - 60
    os.utime(run.path / "status.json", times=(past_s, past_s))
    result = call("status")
    assert result.exit_code == 0
    assert "wrote no status for 6" in result.output


def test_status_names_tasks_that_do_not_start(run: RunDirectory) -> None:
    tasks = made_up_status("x").tasks
    late = tasks[0].model_copy(update={"state": TaskState.STARTING, "waits_for": "part 0"})
    notify(run, tasks=(late, *tasks[1:]))
    assert "store0 on m0: starting, waits for part 0" in call("status").output


def test_all_runs(run: RunDirectory, tmp_path: Path) -> None:
    with RunDirectory.create(tmp_path, "later") as later:
        result = call("status", "--all")
        assert result.output.index(later.run_id) < result.output.index(run.run_id)
        listed = json.loads(call("status", "--all", "--json").output)["runs"]
        assert [each["run_id"] for each in listed] == [run.run_id, later.run_id]
    assert "There is no run" in call("status", "--all", "--runs", str(tmp_path / "no")).output


def test_top_without_a_terminal_is_one_plain_table(run: RunDirectory) -> None:
    lines = call("top").output.splitlines()
    row = next(line for line in lines if "trainer1" in line)
    assert row.split() == ["m1", "trainer1", "waiting", "40%", "4,211", "420", "MB", "sampler1.0"]
    assert not any("━" in line or "…" in line for line in lines)
    assert any(line.split() == ["m1", "10.78.0.2", "1.24", "Gbps", "4.8", "Gbps"] for line in lines)


def test_bars_are_shares_of_what_network_cards_can_do(run: RunDirectory) -> None:
    cluster = Cluster(machines=(Machine(name="m0", nic_in=6.2e8, nic_out=1.2e9),))
    run.plan.write_text(json.dumps({"cluster": cluster.model_dump(mode="json")}))
    from headrace.api.run_status import nic_limits

    assert nic_limits(run) == {"m0": (6.2e8, 1.2e9)}
    lines = draw(run, (100, 40), 4)
    network = next(line for line in lines if "10.78.0.1 " in line)
    assert network.count("━") == 3 + 13  # 3.1e8 and 1.2e9 of 1.25e9, in 14 signs, and a half
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize(
    ("num_machines", "size"),
    [(4, (80, 24)), (4, (100, 30)), (16, (110, 50)), (16, (80, 24)), (64, (80, 24))],
)
def test_the_picture_has_room_in_the_terminal(
    run: RunDirectory, num_machines: int, size: tuple[int, int]
) -> None:
    lines = draw(run, size, num_machines)
    assert len(lines) <= size[1]
    assert max(map(len, lines)) <= size[0]
    text = "\n".join(lines)
    assert "m1 " in text
    if num_machines == 64:
        assert "more machines" in text


def test_many_tasks_are_told_together() -> None:
    status = made_up_status("x", num_trainers=4, num_samplers=8)
    assert len(fitting_rows(status, None)[0]) == len(status.tasks)
    rows, num_hidden = fitting_rows(status, 20)
    assert (len(rows), num_hidden) == (12, 0)
    row = next(row for row in rows if row.machine == "m1" and "samplers" in row.name)
    assert (row.name, row.doing, row.waits_for) == ("8 samplers", "1 of 8 waiting", "store3")
    rows, num_hidden = fitting_rows(status, 4)
    assert [row.name for row in rows] == ["10 tasks"] * 4
    assert [row.doing for row in rows] == ["working", "2 of 10 waiting", "working", "working"]
    assert fitting_rows(status, 3)[1] == 1


def test_a_task_that_seldom_waits_counts_as_working() -> None:
    task = made_up_status("x").tasks[-1].model_copy(update={"waits_for": "sampling"})
    shares = {None: "waiting", 0.5: "waiting", 0.8: "training"}
    for share, word in shares.items():
        assert doing(task.model_copy(update={"busy_share": share})) == word


def test_logs_have_the_name_of_their_task(run: RunDirectory) -> None:
    run.log("store0").write_text("ready\nasked\n")
    run.log("trainer0").write_bytes(b"epoch 1\r\nhalf \xff")
    expected = [
        "store0      ready",
        "store0      asked",
        "trainer0    epoch 1",
        "trainer0    half �",
    ]
    assert call("logs").output.splitlines() == expected
    assert call("logs", "--lines", "1").output.splitlines() == [expected[1], expected[3]]
    assert call("logs", "--task", "store0").output == "ready\nasked\n"
    lines = [json.loads(line) for line in call("logs", "--json").output.splitlines()]
    assert lines[0] == {"task": "store0", "line": "ready"}


def test_logs_of_a_task_that_is_not_there(run: RunDirectory) -> None:
    result = call("logs", "--task", "sampler9.9")
    assert result.exit_code == 2
    assert "has no task 'sampler9.9'" in result.output
    assert call("logs", "--task", "sampler1.0").output == ""


def test_errors_alone(run: RunDirectory) -> None:
    run.log("trainer0").write_text(
        "epoch 1\nTraceback (most recent call last):\n  File x\n    boom()\nValueError: no\nbye\n"
        "CUDA out of memory\n"
    )
    shown = call("logs", "--errors", "--task", "trainer0").output.splitlines()
    assert shown[0].startswith("Traceback")
    assert shown[-2:] == ["ValueError: no", "CUDA out of memory"]
    assert len(shown) == 5


def test_following_ends_with_the_run(run: RunDirectory) -> None:
    run.log("store0").write_text("first\nsec")
    started = threading.Event()

    def go_on() -> None:
        started.wait()
        with run.log("store0").open("a") as file:
            file.write("ond\n")
        run.log("trainer0").write_text("late\n")
        notify(run, state=RunState.DONE)

    writer = threading.Thread(target=go_on)
    writer.start()
    started.set()
    result = call("logs", "--follow")
    writer.join()
    assert result.exit_code == 0
    assert sorted(line.split()[1] for line in result.output.splitlines()) == [
        "first",
        "late",
        "second",
    ]
