"""Calls that need the head of a cluster do not wait for a lost one."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator

import pytest

from headrace.runtime.cluster import head as module
from headrace.runtime.cluster.actor_system import RayActors
from headrace.runtime.cluster.head import SILENT_S, Head, HeadLostError
from tests.support.waiting import eventually


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def head_of(listener: socket.socket, clock: Clock, timeout_s: float = 60.0) -> Head:
    return Head(f"127.0.0.1:{listener.getsockname()[1]}", clock, timeout_s)


def test_answers_and_errors_are_those_of_the_call(listener: socket.socket) -> None:
    head = head_of(listener, Clock())
    assert head.ask(lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        head.ask(lambda: 1 // 0)
    head.close()


def test_a_call_that_is_not_answered_costs_its_timeout_once(listener: socket.socket) -> None:
    head, go, calls = head_of(listener, Clock(), timeout_s=0.01), threading.Event(), 0

    def block() -> None:
        nonlocal calls
        calls += 1
        assert go.wait(60)

    for _ in range(3):
        with pytest.raises(HeadLostError, match="the head of the Ray cluster does not answer"):
            head.ask(block)
    assert calls == 1
    assert head.is_lost
    go.set()
    assert eventually(lambda: not head.is_lost)
    head.close()


def test_a_call_of_little_time_does_not_make_the_head_count_as_lost(
    listener: socket.socket,
) -> None:
    head, go, began = head_of(listener, Clock()), threading.Event(), threading.Event()

    def block() -> None:
        began.set()
        assert go.wait(60)

    for _ in range(2):
        with pytest.raises(HeadLostError):
            head.ask(block, timeout_s=0.01)
    assert not head.is_lost
    assert began.is_set()
    threading.Timer(0.05, go.set).start()
    assert head.ask(lambda: 3) == 3
    head.close()


def test_a_head_that_accepts_no_connection_is_lost(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROBE_INTERVAL_S", 0.01)
    clock = Clock()
    head = head_of(listener, clock)
    clock.now_s += SILENT_S
    assert eventually(lambda: head.silent_s == 0)
    listener.close()
    # A connection may have been accepted before the listener was closed.
    for _ in range(3):
        clock.now_s += SILENT_S
    assert eventually(lambda: head.silent_s >= SILENT_S)
    with pytest.raises(HeadLostError):
        head.ask(lambda: 3)
    head.close()


def test_task_actors_do_not_probe_the_head(listener: socket.socket) -> None:
    head = head_of(listener, Clock())
    assert pickle.loads(pickle.dumps(RayActors(head))).head_silent_s == 0.0
    head.close()
