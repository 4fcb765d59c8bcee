"""What a run's folder says while it runs, and after its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.policies.lifecycle.events import Ended, Event, Outcome, Placed, Ready, Shipped, Waits
from headrace.policies.lifecycle.state import Lifecycle
from headrace.policies.lifecycle.steps import begin, step
from headrace.runtime.callbacks.status_writer import StatusWriter
from headrace.runtime.cluster.nodes import Node
from headrace.runtime.cluster.placement_group import slots_of
from headrace.runtime.run_dir.run_dir import RunDirectory
from headrace.runtime.run_dir.status import RunState, TaskState

NODES = tuple(Node(f"m{m}", f"id{m}", f"10.0.0.{m + 1}", {}) for m in range(2))


class Watcher:
    output: int | None = None

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.messages: list[Mapping[str, Any]] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def show(self, line: str) -> None:
        self.lines.append(line)

    def tell(self, message: Mapping[str, Any]) -> None:
        self.messages.append(message)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunDirectory]:
    with RunDirectory.create(tmp_path, "small") as folder:
        yield folder


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


def begun(folder: RunDirectory, watcher: Watcher) -> tuple[StatusWriter, Lifecycle]:
    machines = [{"name": node.machine, "nic": "1Gbps"} for node in NODES]
    cluster = Cluster.model_validate({"version": 1, "machines": machines})
    made = plan(cluster, Job(name="small", trainers=2, batch_size=2), method="colocate")
    slots = slots_of(made, NODES)
    recorder = StatusWriter(folder, made, slots, watcher)
    state, _ = begin(tuple(slot.task for slot in slots), 0.0)
    return recorder, state


@pytest.fixture
def recorder(folder: RunDirectory, watcher: Watcher) -> StatusWriter:
    recorder, state = begun(folder, watcher)
    events: list[Event] = [Placed(), Shipped(), *map(Ready, state.stages)]
    for event in [*events, Ended("trainer1", 0, "ended")]:
        state, _ = step(state, event, 0.0)
        recorder.changed(state, event)
    return recorder


def seen(**fields: Any) -> dict[str, Any]:
    return {"pid": 7, "code": None, "log_bytes": 0, "trace_bytes": 0, **fields}


def test_there_is_a_status_before_anything_has_its_place(
    folder: RunDirectory, watcher: Watcher
) -> None:
    recorder, state = begun(folder, watcher)
    event = Waits("store1", "4 CPU")
    state, _ = step(state, event, 0.0)
    recorder.changed(state, event)
    status = folder.read_status()
    assert status.state is RunState.STARTING
    assert {task.name for task in status.tasks} == set(state.stages)


def test_the_status_says_how_far_everything_is(
    recorder: StatusWriter, folder: RunDirectory
) -> None:
    first = recorder._first
    message = {"kind": "report", "figures": {"epoch": 3, "loss": 0.5}}
    recorder.polled("store0", seen(nic=(1000, 2000), rss_bytes=10))
    recorder.polled(first, seen(messages=[message], rss_bytes=20))
    for task in ("trainer0", "trainer1"):
        lines = [["exec", task, n, n, n + 0.5] for n in range(4)]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        recorder.traced(task, b'3,1.0]\n5\n["ring","x"]\n' + data)
    status = recorder.status()
    assert (status.state, status.epoch, status.iterations) == (RunState.RUNNING, 3, 4)
    assert status.figures == {"epoch": 3, "loss": 0.5}
    tasks = {task.name: task for task in status.tasks}
    assert tasks["trainer1"].state is TaskState.ENDED
    assert tasks["store0"].state is TaskState.RUNNING
    assert tasks["store1"].state is TaskState.READY
    assert (tasks["trainer0"].iteration, tasks["trainer0"].busy_share) == (3, 2.0 / 3.5)
    assert json.loads(folder.reports.read_text())["figures"]["loss"] == 0.5


def test_steps_are_known_before_their_trace_comes(recorder: StatusWriter) -> None:
    message = {"kind": "batches", "trains": True, "batch": 1, "num_batches": 9, "num_samples": 2}
    message |= {"elapsed_s": 1.0, "waited_s": 0.0, "stages": {}}
    for task, num_steps in (("trainer0", 12), ("trainer1", 11)):
        recorder.polled(task, seen(messages=[{**message, "steps": num_steps}]))
    assert recorder.status().iterations == 11
    recorder.traced("trainer1", b'["exec","trainer1",12,1.0,2.0]\n')
    assert recorder.status().iterations == 12


def test_lines_are_shown_whole_and_logs_are_kept(
    recorder: StatusWriter, folder: RunDirectory, watcher: Watcher
) -> None:
    recorder.printed("trainer0", b"one\ntw")
    recorder.printed("store0", b"not shown\n")
    recorder.printed("trainer0", b"o\nthr")
    assert watcher.lines[-2:] == ["trainer0: one", "trainer0: two"]
    recorder.finish(Outcome(problem="store0 on m0 is lost", remedy="run again"))
    assert watcher.lines[-1] == "trainer0: thr"
    assert folder.log("trainer0").read_bytes() == b"one\ntwo\nthr"
    status = folder.read_status()
    assert status.state is RunState.FAILED
    assert status.error is not None
    assert status.error.problem == "store0 on m0 is lost"


def test_what_the_script_keeps_comes_whole_or_not_at_all(
    recorder: StatusWriter, folder: RunDirectory, watcher: Watcher
) -> None:
    def broken() -> Iterator[bytes]:
        yield b"ha"
        raise TimeoutError

    recorder.kept("best.pt", iter([b"whole ", b"file"]))
    recorder.kept("last.pt", broken())
    assert folder.best.read_bytes() == b"whole file"
    assert "last.pt was not fetched" in watcher.lines[-1]
    assert not [path.name for path in folder.path.iterdir() if "last" in path.name]
