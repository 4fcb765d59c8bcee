"""Signals that end a run."""

from __future__ import annotations

import os
import signal
import threading

from headrace.runtime.interruption import Interruption, signals_set


def test_any_number_of_signals_at_any_moment_set_the_flag() -> None:
    interruption = Interruption()
    before = signal.getsignal(signal.SIGTERM)
    with signals_set(interruption):
        assert not interruption.wait(0.0)
        shooter = threading.Thread(
            target=lambda: [os.kill(os.getpid(), signal.SIGTERM) for _ in range(2000)]
        )
        shooter.start()
        while shooter.is_alive():
            interruption.wait(0.0)
            interruption.set()
        shooter.join()
        assert interruption.wait(60.0)
    assert signal.getsignal(signal.SIGTERM) is before
