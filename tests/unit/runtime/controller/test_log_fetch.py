"""What tasks print comes at once, what they measure in large pieces."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.runtime.controller import log_fetch
from headrace.runtime.controller.log_fetch import LogReader
from headrace.runtime.protocol.actor_state import ActorState


class Call:
    def __init__(self, file: bytes) -> None:
        self._file = file

    def remote(self, offset: int) -> bytes:
        return self._file[offset:]


class Shell:
    log, trace = Call(b"said"), Call(b"x" * log_fetch._TRACE_CHUNK_BYTES)


class AtOnce:
    def add(self, ref: bytes, then: Any, failed: Any) -> None:
        then(ref)


@pytest.fixture
def taken() -> list[tuple[str, int]]:
    return []


@pytest.fixture
def reader(taken: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> LogReader:
    monkeypatch.setattr("headrace.runtime.controller.log_fetch.time.monotonic", lambda: NOW_S[0])
    NOW_S[0] = 0.0
    take = {
        what: lambda task, data, what=what: taken.append((what, len(data)))
        for what in ("log", "trace")
    }
    return LogReader(AtOnce(), lambda task: Shell(), take)  # type: ignore[arg-type]


NOW_S = [0.0]


def state(log: int, trace: int, code: int | None = None) -> ActorState:
    return ActorState(log_bytes=log, trace_bytes=trace, code=code)


def test_a_trace_waits_for_ten_seconds_while_tasks_run(
    reader: LogReader, taken: list[tuple[str, int]]
) -> None:
    reader.update("store0", state(4, 0), True)
    assert taken == [("log", 4)]
    NOW_S[0] = 9.0
    reader.update("store0", state(4, 100), True)
    assert taken == [("log", 4)]
    NOW_S[0] = 11.0
    reader.update("store0", state(4, 100), True)
    assert taken[1][0] == "trace"


def test_much_of_a_trace_does_not_wait(reader: LogReader, taken: list[tuple[str, int]]) -> None:
    reader.update("store0", state(0, 0), True)
    reader.update("store0", state(0, log_fetch._TRACE_CHUNK_BYTES), True)
    assert taken == [("trace", log_fetch._TRACE_CHUNK_BYTES)]


@pytest.mark.parametrize(("is_calm", "code"), [(False, None), (True, 0)])
def test_nothing_waits_at_the_end(
    reader: LogReader, taken: list[tuple[str, int]], is_calm: bool, code: int | None
) -> None:
    reader.update("store0", state(0, 0), True)
    reader.update("store0", state(0, 1, code), is_calm)
    assert [what for what, _ in taken] == ["trace"]
