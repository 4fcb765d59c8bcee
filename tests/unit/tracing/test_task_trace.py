"""Lines that a sampler and a trainer write, with clocks that go by hand."""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.rpc.call_meter import MeteredChannel, measured_store
from headrace.rpc.framing import Message
from headrace.tracing.meter import Call, Meter, current_meter, metering
from headrace.tracing.task_trace import SharedTime, StepRecorder, SubBatchRecorder, TraceWriter
from tests.support.disks import fill, small_disk


class HandClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def recorder(tmp_path: Path, clock: HandClock) -> TraceWriter:
    return TraceWriter(tmp_path / "trace", "sampler1.0", clock)


def lines(folder: Path) -> list[Any]:
    return [json.loads(line) for line in (folder / "trace").read_text().splitlines()]


def test_records_are_written_once_a_second_and_at_the_end(
    tmp_path: Path, clock: HandClock, recorder: TraceWriter
) -> None:
    recorder.record(("exec", "trainer0", 0, 1.0, 2.0))
    assert lines(tmp_path) == []
    clock.now_s += 1.5
    recorder.record(("exec", "trainer0", 1, 2.0, 3.0))
    assert len(lines(tmp_path)) == 2
    recorder.record(("exec", "trainer0", 2, 3.0, 4.0))
    assert len(lines(tmp_path)) == 2
    recorder.close()
    assert lines(tmp_path)[2] == ["exec", "trainer0", 2, 3.0, 4.0]
    recorder.record(("exec", "trainer0", 3, 4.0, 5.0))
    recorder.close()
    assert len(lines(tmp_path)) == 3


def test_a_full_disk_costs_whole_records(tmp_path: Path, clock: HandClock) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        path = disk / "trace.jsonl"
        writer = TraceWriter(path, "trainer0", clock)
        writer.record(("exec", "trainer0", 0, 0.0, 0.5))
        writer.flush()
        filler = fill(disk)
        writer.record(*(("exec", "trainer0", n, 0.0, 0.5) for n in range(1, 500)))
        writer.flush()
        writer.mark(500)
        filler.unlink()
        writer.record(("exec", "trainer0", 500, 0.0, 0.5))
        writer.close()
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert [record[2] for record in records] == [0, 500]


def test_time_is_shared_by_those_who_work(clock: HandClock) -> None:
    shared = SharedTime(clock)
    _, first = shared.enter()
    clock.now_s += 2.0
    _, second = shared.enter()
    clock.now_s += 4.0
    assert shared.leave()[1] - first == 2.0 + 4.0 / 2
    clock.now_s += 1.0
    assert shared.leave()[1] - second == 4.0 / 2 + 1.0
    clock.now_s += 50.0
    at_s, third = shared.enter()
    assert at_s == clock.now_s
    clock.now_s += 3.0
    assert shared.leave()[1] - third == 3.0


def test_a_part_says_what_it_took(tmp_path: Path, clock: HandClock, recorder: TraceWriter) -> None:
    parts = SubBatchRecorder(recorder, 10, lambda: clock.now_s / 2)
    notes = parts.begin(2, 3, 64)
    with notes.working():
        meter = current_meter()
        assert meter is notes.meter
        meter.add_call("store1", (100.5, 101.0), 30, 1000, 0.25, has_features=True)
        meter.add_local(0, 70)
        clock.now_s += 2.0
    assert current_meter() is None
    clock.now_s += 10.0
    with notes.working():
        notes.meter.add_call("store1", (112.0, 113.0), 5, 500, 0.5)
        clock.now_s += 1.0
    parts.end(notes, 4096)
    recorder.close()
    assert lines(tmp_path) == [
        ["exec", "sampler1.0", 23, 100.0, 113.0, 3.0, 1.5, 4096, 64],
        ["flow", "store1", "sampler1.0", 23, 1500, 100.5, 113.0, 1000],
        ["flow", "sampler1.0", "store1", 23, 35, 100.5, 113.0],
        ["serve", "store1", "sampler1.0", 23, 0.75],
        ["local", "store0", "sampler1.0", 23, 70],
    ]


def test_a_trainer_says_when_it_worked(
    tmp_path: Path, clock: HandClock, recorder: TraceWriter
) -> None:
    steps = StepRecorder(recorder)
    for _ in range(2):
        steps.begin()
        clock.now_s += 0.25
        steps.exchange(clock.now_s - 0.125, clock.now_s, 800)
        steps.end()
        clock.now_s += 1.0
    assert steps.num_steps == 2
    steps.begin()
    # A loop that was left in the middle of this step goes on with the next one.
    steps.begin()
    record = steps.recording_from("sampler1.1", 5)
    record(Call(1.0, 2.0, 60, 7000, {"part": {"epoch": 1, "batch": 2}}))
    record(Call(1.0, 2.0, 60, 500, {"wait": True}))
    steps.close()
    found = lines(tmp_path)
    assert found[:2] == [
        ["ring", "sampler1.0", 0, 100.125, 100.25, 800],
        ["exec", "sampler1.0", 0, 100.0, 100.25],
    ]
    assert found[3] == ["exec", "sampler1.0", 1, 101.25, 101.5]
    assert found[4:6] == [
        ["flow", "sampler1.1", "sampler1.0", 7, 7000, 1.0, 2.0],
        ["flow", "sampler1.0", "sampler1.1", 7, 60, 1.0, 2.0],
    ]
    assert found[6][2] == 3


class LateChannel:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[Future[Message]] = []

    def ask(self, fields: Any, arrays: Any, timeout_s: float) -> Future[Message]:
        self.asked.append(Future())
        return self.asked[-1]

    def close(self) -> None:
        self.asked = []


def test_calls_are_noted_with_the_part_that_asked(clock: HandClock) -> None:
    late = LateChannel()
    channel = measured_store(late, "store3", clock)
    meters = [Meter(), Meter()]
    for meter in meters:
        with metering(meter):
            channel.ask({"op": "gather"}, [np.zeros(10)], 1.0)
        clock.now_s += 1.0
    channel.ask({"op": "ping"}, (), 1.0)
    replies = [Message(n, {"service_s": 0.5}, (np.zeros(100 * (n + 1)),)) for n in range(3)]
    # Answers come in another order, to a thread that works on no part.
    threads = [
        threading.Thread(target=late.asked[n].set_result, args=(replies[n],)) for n in (1, 0, 2)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    for number, meter in enumerate(meters):
        use = meter.stores["store3"]
        assert (use.num_calls, use.service_s) == (1, 0.5)
        assert (use.first_s, use.last_s) == (100.0 + number, 102.0)
        assert use.reply_bytes == pytest.approx(800 * (number + 1) + 150 + 17, rel=0.01)
        assert use.request_bytes == pytest.approx(80 + 130 + 15, rel=0.01)
    channel.close()
    assert late.asked == []


def test_a_call_that_failed_is_not_counted(clock: HandClock) -> None:
    late, calls = LateChannel(), list[Call]()
    channel = MeteredChannel(late, clock, lambda: calls.append)
    future = channel.ask({"op": "next"}, (), 1.0)
    late.asked[0].set_exception(ValueError("gone"))
    assert isinstance(future.exception(), ValueError)
    assert calls == []


def test_swaps_of_a_step_are_written(
    tmp_path: Path, clock: HandClock, recorder: TraceWriter
) -> None:
    steps = StepRecorder(recorder)
    assert steps.swap(400, True, False, [0, 800]) is None
    steps.begin()
    notes = steps.swap(400, True, False, [0, 800])
    assert notes is not None
    clock.now_s += 1
    notes.wait()
    clock.now_s += 2
    notes.end()
    steps.end()
    recorder.close()
    assert lines(tmp_path) == [
        ["swap", "sampler1.0", 0, 100.0, 101.0, 103.0, 400, 1, 0, [0, 800]],
        ["exec", "sampler1.0", 0, 100.0, 103.0],
    ]
