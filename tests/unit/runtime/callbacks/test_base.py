"""Every event of a run reaches all callbacks."""

from __future__ import annotations

import inspect

import pytest

from headrace.runtime.callbacks.base import CallbackList, RunCallback

EVENTS = [name for name, _ in inspect.getmembers(RunCallback, inspect.isfunction) if name[0] != "_"]


@pytest.mark.parametrize("event", EVENTS)
def test_a_list_forwards_every_event_in_order(event: str) -> None:
    received: list[tuple[int, tuple[object, ...]]] = []
    callbacks = [RunCallback() for _ in range(2)]
    for number, callback in enumerate(callbacks):
        setattr(callback, event, lambda *given, number=number: received.append((number, given)))
    num_arguments = len(inspect.signature(getattr(RunCallback, event)).parameters) - 1
    arguments = tuple(object() for _ in range(num_arguments))
    getattr(CallbackList(callbacks), event)(*arguments)
    assert received == [(0, arguments), (1, arguments)]


def test_lists_may_be_empty_or_nested() -> None:
    lines: list[str] = []

    class Says(RunCallback):
        def log(self, line: str) -> None:
            lines.append(line)

    CallbackList([]).log("lost")
    CallbackList([RunCallback(), CallbackList([Says()])]).log("running")
    assert lines == ["running"]
