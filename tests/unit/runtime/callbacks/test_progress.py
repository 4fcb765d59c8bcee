"""What a run says before its first batch, and how many threads its trainer gets."""

from __future__ import annotations

import os

import pytest

from headrace.runtime.callbacks.progress import StartupWatch
from headrace.runtime.controller.local_backend import _num_threads
from headrace.runtime.protocol.trainer_messages import (
    BatchProgress,
    BatchRequested,
    Message,
    Report,
    Waiting,
)


def test_says_every_ten_seconds_what_it_waits_for() -> None:
    first = StartupWatch(100.0)
    assert first.poll(109.0) == ""
    assert first.poll(110.0) == (
        "no batch after 10 s: waiting for the script to request a batch from a headrace loader"
    )
    assert first.poll(119.0) == ""
    first.update(BatchRequested())
    assert "no batch after 20 s: waiting for the first batch" in first.poll(120.5)
    first.update(Waiting("store 1 on m1", True))
    assert first.poll(131.0) != ""


@pytest.mark.parametrize("message", [BatchProgress(False, 1, 9, 4, 1.0, 0.5, {}), Report({})])
def test_says_nothing_once_the_script_goes_on(message: Message) -> None:
    first = StartupWatch(0.0)
    first.update(message)
    assert first.poll(1000.0) == ""


def test_samplers_have_their_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert [_num_threads(num_samplers) for num_samplers in (0, 1, 7, 20)] == [8, 7, 1, 1]
