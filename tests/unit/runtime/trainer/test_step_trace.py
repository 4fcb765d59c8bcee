"""What a trainer's process records, if its run wants to know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.rpc.call_meter import MeteredChannel
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import BatchRequested, LoopLeft, Message
from headrace.runtime.trainer import step_trace
from headrace.runtime.trainer.step_trace import metered_channel, steps_of, watched

pytest.importorskip("torch_geometric")


class NoChannel:
    def ask(self, fields: Any, arrays: Any, timeout_s: float) -> Any:
        raise AssertionError

    def close(self) -> None:
        pass


def run_of(folder: Path, **settings: Any) -> RunContext:
    return RunContext(machine="m", messages=folder / "messages", **settings)


def test_a_run_that_records_nothing(tmp_path: Path) -> None:
    run, channel = run_of(tmp_path), NoChannel()
    assert steps_of(run) is None
    assert metered_channel(run, channel, "sampler0.0", 3) is channel


def test_a_script_ends_after_as_many_steps_as_are_wanted(tmp_path: Path) -> None:
    run = run_of(tmp_path, task="trainer1", trace=tmp_path / "trace", iterations=3)
    steps = steps_of(run)
    assert steps is steps_of(run)
    assert isinstance(metered_channel(run, NoChannel(), "sampler1.0", 5), MeteredChannel)
    first, second = (watched(run, iter(range(2)), True, (8, 4, 2)) for _ in range(2))
    assert list(first) == [0, 1]
    assert next(second) == 0
    with pytest.raises(SystemExit) as end:
        next(second)
    assert end.value.code == 0
    records = [json.loads(line) for line in (tmp_path / "trace").read_text().splitlines()]
    assert [record[:3] for record in records] == [["exec", "trainer1", n] for n in range(3)]


def test_a_loop_that_is_left_early_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Message] = []
    monkeypatch.setattr(step_trace, "send", lambda path, message: sent.append(message))
    for _ in watched(run_of(tmp_path), iter(range(9)), True, (36, 4, 9)):
        break
    assert sent == [BatchRequested(), LoopLeft()]
    sent.clear()
    # A loader may have fewer batches than its length.
    assert list(watched(run_of(tmp_path), iter(range(2)), True, (36, 4, 9))) == [0, 1]
    assert sent[-1] == LoopLeft()
