"""Trackers hear of a run, and never harm it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from headrace.runtime.callbacks import trackers
from headrace.runtime.callbacks.trackers import Trackers
from headrace.runtime.run_dir.status import RunState
from tests.unit.runtime.listened import status


class Remembers:
    name, where = "Memory", "here"

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def start(self, run: str, config: Mapping[str, Any], at_s: float) -> None:
        self.heard.append(("start", run, dict(config)))

    def log(self, step: int, figures: Mapping[str, float], at_s: float) -> None:
        self.heard.append(("log", step, dict(figures), at_s))

    def finish(self, state: str, at_s: float) -> None:
        self.heard.append(("finish", state))


class Fails(Remembers):
    name = "Broken"

    def log(self, step: int, figures: Mapping[str, float], at_s: float) -> None:
        raise ConnectionError("no server at https://me:secret@host/\nat all")


def test_figures_come_with_their_step_and_those_of_the_run() -> None:
    memory, said = Remembers(), list[str]()
    run = Trackers([memory], said.append, clock=lambda: 5.0)
    run.start("run-1", {"lr": 0.1})
    run.updated(status(iterations=40, samples_per_s=100.0))
    run.reported({"epoch": 2, "loss": 0.5, "note": "text"})
    run.reported({"loss": 0.25})
    run.finished(status(state=RunState.FAILED))
    own = {"run/iterations": 40, "run/samples_per_s": 100.0}
    assert memory.heard == [
        ("start", "run-1", {"lr": 0.1}),
        ("log", 2, {"epoch": 2.0, "loss": 0.5, **own}, 5.0),
        ("log", 2, {"loss": 0.25, **own}, 5.0),
        ("finish", "failed"),
    ]
    assert said == []


def test_one_that_fails_is_left_out_and_said_once() -> None:
    memory, broken, said = Remembers(), Fails(), list[str]()
    run = Trackers([broken, memory], said.append)
    run.start("run-1", {})
    for epoch in range(3):
        run.reported({"epoch": epoch})
    run.finish("done")
    assert [what for what, *_ in memory.heard] == ["start", "log", "log", "log", "finish"]
    assert broken.heard == [("start", "run-1", {})]
    assert said == ["Broken is disabled after an error: no server at https://host/"]


def test_a_run_does_not_wait_for_a_slow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "_FLUSH_TIMEOUT_S", 0.05)
    answers = threading.Event()

    class Slow(Remembers):
        name = "Slow"

        def log(self, step: int, figures: Mapping[str, float], at_s: float) -> None:
            answers.wait(60)

    said: list[str] = []
    run = Trackers([Slow()], said.append)
    run.reported({"epoch": 1})
    run.finish("done")
    answers.set()
    assert said == ["Slow does not respond: it may lack the last figures"]
