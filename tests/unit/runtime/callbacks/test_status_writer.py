"""What a run's folder says while it runs, and after its end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.policies.lifecycle.events import Ended, Event, Outcome, Placed, Ready, Shipped, Waits
from headrace.policies.lifecycle.state import Lifecycle
from headrace.policies.lifecycle.steps import begin, step
from headrace.runtime.callbacks import status_writer
from headrace.runtime.callbacks.status_writer import StatusWriter
from headrace.runtime.cluster.nodes import Node
from headrace.runtime.cluster.placement_group import slots_of
from headrace.runtime.protocol.actor_state import ActorState
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchSizeRequest,
    CheckpointWrite,
    Message,
    Note,
    Report,
    Resumed,
)
from headrace.runtime.run_dir.run_dir import RunDirectory
from headrace.runtime.run_dir.status import RunState, TaskState
from tests.support.disks import fill, small_disk

NODES = tuple(Node(f"m{m}", f"id{m}", f"10.0.0.{m + 1}", {}) for m in range(2))


class Watcher:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.messages: list[Message] = []

    def log(self, line: str) -> None:
        self.lines.append(line)

    def show(self, line: str) -> None:
        self.lines.append(line)

    def notify(self, message: Message) -> None:
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
    message = Report({"epoch": 3, "loss": 0.5})
    recorder.polled("store0", ActorState(pid=7, nic=(1000, 2000), rss_bytes=10))
    recorder.polled(first, ActorState(pid=7, messages=(message,), rss_bytes=20))
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


def test_the_largest_memory_of_a_task_is_kept(recorder: StatusWriter) -> None:
    for num_bytes in (5, 40, 20, 0):
        recorder.polled("store0", ActorState(pid=7, anonymous_bytes=num_bytes))
    recorder.polled("store0", ActorState(code=0))
    peaks = {task.name: task.peak_bytes for task in recorder.status().tasks}
    assert (peaks["store0"], peaks["store1"]) == (40, None)


def test_steps_are_known_before_their_trace_comes(recorder: StatusWriter) -> None:
    for task, num_steps in (("trainer0", 12), ("trainer1", 11)):
        message = BatchProgress(True, 1, 9, 2, 1.0, 0.0, {}, steps=num_steps)
        recorder.polled(task, ActorState(pid=7, messages=(message,)))
    assert recorder.status().iterations == 11
    recorder.traced("trainer1", b'["exec","trainer1",12,1.0,2.0]\n')
    assert recorder.status().iterations == 12


def test_events_have_the_keys_of_messages(
    recorder: StatusWriter, folder: RunDirectory, watcher: Watcher
) -> None:
    messages = (
        CheckpointWrite(8, 1, 3, 1000, None, 0.5, 0.25, 2.0, 1.5),
        CheckpointWrite(9, problem="cannot be written: no space"),
        Resumed(8, 1, 3, True, False),
        BatchSizeRequest(512),
        Note("not an event"),
    )
    recorder.polled(recorder._first, ActorState(pid=7, messages=messages))
    assert watcher.messages == list(messages)
    events = [json.loads(line) for line in folder.events.read_text().splitlines()]
    kinds = ("checkpoint", "resumed", "batch_size")
    times = {"stall_s": 0.0, "agree_s": 0.0, "write_s": 0.0, "write_cpu_s": 0.0}
    found = [event for event in events if event["kind"] in kinds]
    assert [event.pop("at_s") > 0 for event in found] == [True] * 4
    assert [list(event.items()) for event in found] == [
        list(event.items())
        for event in (
            {"kind": "checkpoint", "iteration": 8, "epoch": 1, "batch": 3, "bytes": 1000}
            | {"stall_s": 0.5, "agree_s": 0.25, "write_s": 2.0, "write_cpu_s": 1.5},
            {"kind": "checkpoint", "iteration": 9, "problem": "cannot be written: no space"}
            | times,
            {"kind": "resumed", "iteration": 8, "epoch": 1, "batch": 3}
            | {"deals_anew": True, "is_over": False},
            {"kind": "batch_size", "asked": 512},
        )
    ]
    assert watcher.lines[-3:] == [
        "the checkpoint of iteration 9 cannot be written: no space",
        "resumed at iteration 8 (epoch 1, batch 3)",
        "the seed assignment has changed, so batches differ from before",
    ]


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


def test_bytes_of_an_epoch_are_known_with_its_batches(recorder: StatusWriter) -> None:
    flow = ["flow", "store1", "sampler0.0", 0, 1000, 0.0, 1.0, 900]
    recorder.traced("sampler0.0", json.dumps(flow).encode() + b"\n")
    recorder.traced("trainer0", json.dumps(["exec", "trainer0", 0, 1.0, 2.0]).encode() + b"\n")
    assert recorder.status().epoch_bytes == {}
    progress = BatchProgress(True, 1, 20, 4, 1.0, 0.5, {})
    recorder.polled("trainer0", ActorState(messages=(progress,)))
    assert recorder.status().epoch_bytes == {"features": 18_000, "structure": 2_000}


def test_a_full_disk_does_not_end_a_run_and_its_end_is_written(
    tmp_path: Path, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_writer, "_WRITE_INTERVAL_S", 0.0)
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        folder = RunDirectory.create(disk, "small")
        recorder, state = begun(folder, watcher)
        state, _ = step(state, Placed(), 0.0)
        recorder.changed(state, Placed())
        recorder.printed("trainer0", b"before\n")
        filler = fill(disk)
        for _ in range(3):
            recorder.printed("trainer0", bytes(9000))
            recorder.traced("trainer0", b'["exec","trainer0",0,0.0,0.5]\n' * 300)
            recorder.log("a line")
            recorder.polled("store0", ActorState(pid=7))
        told = [line for line in watcher.lines if "cannot be written" in line]
        assert len(told) == 1
        assert "(No space left on device): the run goes on" in told[0]
        # Nothing is there in part.
        assert folder.log("trainer0").read_bytes() == b"before\n"
        filler.unlink()
        recorder.log("a line")
        assert f"{folder.path} can be written again" in watcher.lines
        fill(disk)
        recorder.finish(Outcome(problem="no space", remedy="free some"))
        status = folder.read_status()
        assert status.state is RunState.FAILED
        assert status.error is not None
        assert status.error.problem == "no space"
        for line in folder.events.read_text().splitlines():
            json.loads(line)
        assert json.loads(folder.events.read_text().splitlines()[-1])["kind"] == "outcome"
        folder.close()
