"""Signals that end a run."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from headrace.runtime.interruption import Interruption, signals_set


def _ignore(number: int, frame: FrameType | None) -> None:
    """A late signal must not end the tests."""


@pytest.fixture
def _harmless() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _ignore)
    yield
    signal.signal(signal.SIGTERM, before)


def _shoot() -> None:
    for _ in range(2000):
        os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.usefixtures("_harmless")
def test_any_number_of_signals_at_any_moment_set_the_flag() -> None:
    interruption = Interruption()
    with signals_set(interruption):
        assert not interruption.wait(0.0)
        shooter = threading.Thread(target=_shoot)
        shooter.start()
        while shooter.is_alive():
            interruption.wait(0.0)
            interruption.set()
        shooter.join()
        assert interruption.wait(60.0)
    assert signal.getsignal(signal.SIGTERM) is _ignore
