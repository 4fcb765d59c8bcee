"""SIGINT while a trainer can save, and while it cannot."""

from __future__ import annotations

import signal

import pytest

from headrace.runtime.trainer.stop_signal import StopRequest


def test_whoever_cannot_save_is_interrupted_by_the_second_signal() -> None:
    before = signal.getsignal(signal.SIGINT)
    stop = StopRequest()
    with stop.intercept_sigint():
        signal.raise_signal(signal.SIGINT)
        assert stop.is_set
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("hears_first", [True, False])
def test_whoever_saves_is_not_interrupted(hears_first: bool) -> None:
    stop = StopRequest()
    with stop.intercept_sigint():
        if hears_first:
            signal.raise_signal(signal.SIGINT)
        # Others were told first, and all save together.
        stop.keep()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert stop.is_set
