"""Signals that end a run."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

import pytest

from headrace.runtime.controller.signals import Interruption, signals_set


def _ignore(number: int, frame: FrameType | None) -> None:
    """A late signal must not end the tests."""


@pytest.fixture
def _harmless() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _ignore)
    yield
    # A signal that is pending when its handler is replaced raises OSError at some later time.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    while signal.sigtimedwait({signal.SIGTERM}, 0) is not None:
        pass
    signal.signal(signal.SIGTERM, before)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _shoot() -> None:
    for _ in range(2000):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("_harmless")
def test_any_number_of_signals_at_any_moment_set_the_flag() -> None:
    interruption = Interruption()
    with signals_set(interruption):
        assert not interruption.is_set()
        shooter = threading.Thread(target=_shoot)
        shooter.start()
        while shooter.is_alive():
            interruption.set()
        shooter.join()
        assert interruption.is_set()
    assert signal.getsignal(signal.SIGTERM) is _ignore


def test_signals_of_one_moment_are_one_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    interruption, now_s = Interruption(), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    interruption.set()
    interruption.set()
    assert interruption.num_times == 1
    now_s = 102.0
    interruption.set()
    assert interruption.num_times == 2
