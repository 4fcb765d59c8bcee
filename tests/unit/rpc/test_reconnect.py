"""Stores that come back, and stores that do not: all of it without a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import numpy as np
import pytest

from headrace.rpc.client import Channel
from headrace.rpc.config import TaskAddress
from headrace.rpc.errors import StoreError, StoreLostError
from headrace.rpc.framing import Fields, Message
from headrace.rpc.reconnect import ReconnectingChannel, RetryBudget

STORE = TaskAddress(task="store1", machine="m1", host="10.0.0.1", port=4711)
LOST = StoreLostError("store1 on m1 is gone", "see its log")
WAIT_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Line:
    """A connection that answers until it is cut."""

    def __init__(self, refuses: Exception | None = None) -> None:
        self.asked: list[Fields] = []
        self.waiting: list[Future[Message]] = []
        self.is_cut = self.is_mute = self.is_closed = False
        self._refuses = refuses

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        future: Future[Message] = Future()
        if fields["op"] != "ping":
            self.asked.append(fields)
        if self.is_cut:
            future.set_exception(LOST)
        elif fields["op"] == "ping":
            future.set_result(Message(0, {}))
        elif self._refuses is not None:
            future.set_exception(self._refuses)
        elif self.is_mute:
            self.waiting.append(future)
        else:
            future.set_result(Message(0, {"answer": fields["op"]}))
        return future

    def cut(self) -> None:
        self.is_cut = True
        for future in self.waiting:
            future.set_exception(LOST)

    def close(self) -> None:
        self.is_closed = True


class Lines:
    """Gives one connection after the other; an exception stands for one that cannot be opened."""

    def __init__(self, *lines: Line | Exception) -> None:
        self._lines = list(lines)
        self.num_tries = 0

    def __call__(self) -> Channel:
        self.num_tries += 1
        line = self._lines.pop(0) if len(self._lines) > 1 else self._lines[0]
        if isinstance(line, Exception):
            raise line
        return line


def patient(
    lines: Lines, clock: Clock, notify: Callable[[str, bool], None] = lambda _name, _waits: None
) -> ReconnectingChannel:
    return ReconnectingChannel(STORE, lines, RetryBudget(30.0, clock, notify))


def ask(channel: ReconnectingChannel, op: str = "gather") -> Future[Message]:
    return channel.ask({"op": op}, (), 10.0)


def test_what_was_asked_is_asked_again_on_a_new_connection() -> None:
    first, second = Line(), Line()
    first.is_mute = True
    lines = Lines(LOST, first, LOST, LOST, second)
    channel = patient(lines, Clock())
    futures = [ask(channel, op) for op in ("gather", "sample", "status")]
    first.cut()
    assert [future.result(WAIT_S).fields["answer"] for future in futures] == [
        "gather", "sample", "status",
    ]  # fmt: skip
    assert lines.num_tries == 5
    assert first.is_closed
    assert ask(channel).result(WAIT_S).fields["answer"] == "gather"
    assert lines.num_tries == 5
    channel.close()
    assert second.is_closed


def test_a_refusal_is_an_answer() -> None:
    lines = Lines(Line(StoreError("store1 on m1 refused to gather", "ask for less")))
    channel = patient(lines, Clock())
    with pytest.raises(StoreError, match="refused to gather"):
        ask(channel).result(WAIT_S)
    assert lines.num_tries == 1
    channel.close()


def test_who_is_not_let_in_does_not_wait() -> None:
    refused = StoreError("store1 on m1 rejected this client", "use the credentials of the run")
    with pytest.raises(StoreError, match="rejected this client"):
        patient(Lines(refused), Clock())
    line = Line()
    channel = patient(Lines(line, refused), Clock())
    line.cut()
    with pytest.raises(StoreError, match="rejected this client"):
        ask(channel).result(WAIT_S)
    channel.close()


def test_patience_ends_and_begins_anew_with_the_next_question() -> None:
    clock, line, last = Clock(), Line(), Line()
    lines = Lines(line, LOST)
    channel = patient(lines, clock)
    line.cut()
    asked = ask(channel)
    assert not asked.done()
    clock.now_s = 31.0
    with pytest.raises(StoreLostError, match="store1 on m1 has not answered for 30 s"):
        asked.result(WAIT_S)
    again = ask(channel)
    lines._lines[:] = [last]
    assert again.result(WAIT_S).fields["answer"] == "gather"
    channel.close()


def test_waiting_is_told_once_and_so_is_its_end() -> None:
    clock, line, second = Clock(), Line(), Line()
    line.is_mute = True
    told: list[tuple[str, bool]] = []
    news = threading.Semaphore(0)

    def notify(name: str, waits: bool) -> None:
        told.append((name, waits))
        news.release()

    channel = patient(Lines(line, second), clock, notify)
    futures = [ask(channel) for _ in range(3)]
    clock.now_s = 5.5
    assert news.acquire(timeout=WAIT_S)
    line.cut()
    for future in futures:
        future.result(WAIT_S)
    assert news.acquire(timeout=WAIT_S)
    assert told == [("store1 on m1", True), ("store1 on m1", False)]
    channel.close()


def test_a_closed_channel_waits_for_nothing() -> None:
    line = Line()
    channel = patient(Lines(line, LOST), Clock())
    line.cut()
    asked = ask(channel)
    channel.close()
    for future in (asked, ask(channel)):
        with pytest.raises(StoreError, match="connection to store1 on m1 was closed"):
            future.result(WAIT_S)
