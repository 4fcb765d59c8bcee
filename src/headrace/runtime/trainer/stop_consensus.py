"""Lets all trainers stop after the same step, although stop signals arrive at different steps."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from headrace.runtime.trainer.stop_signal import StopRequest
from headrace.training.collectives import largest

POLL_INTERVAL_S = 0.3
"""Interval between two polls of all trainers."""


class StopConsensus:
    """Polls all trainers periodically with a collective that all enter after the same step.

    A poll that starts after a step is read after the next one: by then all trainers have entered
    it, so it waits no longer than the gradient exchange.

    Attributes:
        is_cheap: Whether rank 0 could save cheaply at the last poll.
        seconds: Time spent here since the caller last reset it.
    """

    def __init__(self, is_alone: bool, device: torch.device, stop: StopRequest) -> None:
        self.is_cheap, self.seconds = True, 0.0
        self._is_alone, self._device, self._stop = is_alone, device, stop
        self._result: Callable[[], list[int]] | None = None
        self._polled_s, self._polled_step, self._gap = 0.0, 0, 1

    def begin(self, step: int) -> None:
        """Count steps from here on."""
        self._polled_s, self._polled_step, self._gap = time.perf_counter(), step, 1

    def should_stop(self, step: int, is_cheap: bool) -> bool:
        """Whether all trainers stop now; `is_cheap` is false for ranks other than 0."""
        begin_s = time.perf_counter()
        stops = 0
        if self._is_alone:
            stops, self.is_cheap = int(self._stop.is_set), is_cheap
        elif self._result is not None:
            stops, cheap, self._gap = self._result()
            self._result, self.is_cheap = None, bool(cheap)
        elif step >= self._polled_step + self._gap:
            step_s = (begin_s - self._polled_s) / (step - self._polled_step)
            gap = min(max(int(POLL_INTERVAL_S / max(step_s, 1e-6)), 1), 2 * self._gap)
            self._result = largest([int(self._stop.is_set), int(is_cheap), gap], self._device)
            self._polled_s, self._polled_step = begin_s, step
        self.seconds += time.perf_counter() - begin_s
        if stops:
            self._stop.keep()
        return bool(stops)
