"""Actors of this process are called in one thread."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from headrace.runtime.cluster.actor_system import CallFailure
from headrace.runtime.cluster.local_actors import LocalActors


class Counter:
    """An actor that records the thread of each call."""

    def __init__(self, start: int) -> None:
        self.value, self.threads, self.is_closed = start, [], False  # type: ignore[var-annotated]

    def add(self, value: int) -> int:
        self.threads.append(threading.get_ident())
        self.value += value
        return self.value

    def fail(self) -> None:
        raise ValueError("no")

    def close(self) -> None:
        self.is_closed = True


def start(system: LocalActors) -> Any:
    group = system.reserve((), "run")
    assert group.is_ready
    assert group.lacks() == {}
    return group.start(0, Counter, 40)


def test_a_call_is_done_when_it_returns() -> None:
    system = LocalActors("m0")
    counter = start(system)
    first, failed = counter.add.remote(2), counter.fail.remote()
    assert system.wait([first, failed], 60.0) == [first, failed]
    assert system.get(first, 0.0) == 42
    with pytest.raises(ValueError, match="no") as raised:
        system.get(failed, 0.0)
    assert system.why(raised.value) is CallFailure.RAISED


def test_calls_of_other_threads_run_in_the_thread_that_waits() -> None:
    system = LocalActors("m0")
    counter = start(system)
    results: list[int] = []

    def call() -> None:
        ref: Future[int] = counter.add.remote(1)
        results.append(system.get(ref, 60.0))

    thread = threading.Thread(target=call)
    thread.start()
    while thread.is_alive():
        system.wait([], 0.01)
    assert results == [41]
    assert counter.actor.threads == [threading.get_ident()]


def test_a_killed_actor_ends_its_processes() -> None:
    system = LocalActors("m0")
    counter = start(system)
    system.kill(counter)
    assert counter.actor.is_closed
