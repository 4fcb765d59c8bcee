"""Ctrl-C while a trainer can save, and while it cannot."""

from __future__ import annotations

import signal
import time

import pytest

from headrace.runtime import stopping
from headrace.runtime.stopping import StopRequest


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "PATIENCE_S", 0.05)


def test_whoever_cannot_save_in_time_is_interrupted() -> None:
    stop = StopRequest()
    with stop.heard():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
    assert stop.is_set


@pytest.mark.parametrize("hears_first", [True, False])
def test_whoever_saves_is_not_interrupted(hears_first: bool) -> None:
    stop = StopRequest()
    with stop.heard():
        if hears_first:
            signal.raise_signal(signal.SIGINT)
        # Others were told first, and all save together.
        stop.keep()
        if not hears_first:
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)
    assert stop.is_set


def test_a_second_signal_is_obeyed_at_once() -> None:
    stop = StopRequest()
    with stop.heard():
        stop.keep()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
