"""Trainers may be told to stop at different steps, and must stop after the same one."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from headrace.runtime.trainer.stop_signal import StopRequest
from headrace.training.collectives import largest

EVERY_S = 0.3
"""How often trainers ask each other."""


class StopConsensus:
    """Asks all trainers of a run now and then; they come here after the same steps.

    What is asked after a step is answered after the next: by then all others must have asked, so
    that nobody waits longer than for their gradients.

    Args:
        is_alone: Whether there is one trainer.
        device: Where this trainer computes.
        stop: Whether this one is told to stop.

    Attributes:
        wish: What rank 0 wanted when it was asked last.
        seconds: Spent here since somebody set it to 0.
    """

    def __init__(self, is_alone: bool, device: torch.device, stop: StopRequest) -> None:
        self.wish, self.seconds = True, 0.0
        self._is_alone, self._device, self._stop = is_alone, device, stop
        self._answer: Callable[[], list[int]] | None = None
        self._asked_s, self._asked_at, self._gap = 0.0, 0, 1

    def begin(self, step: int) -> None:
        """Count from here on."""
        self._asked_s, self._asked_at, self._gap = time.perf_counter(), step, 1

    def is_told(self, step: int, wish: bool) -> bool:
        """Whether all trainers are to stop now.

        Args:
            step: How many were done.
            wish: Of rank 0, false for others.
        """
        begin_s = time.perf_counter()
        told = 0
        if self._is_alone:
            told, self.wish = int(self._stop.is_set), wish
        elif self._answer is not None:
            told, wanted, self._gap = self._answer()
            self._answer, self.wish = None, bool(wanted)
        elif step >= self._asked_at + self._gap:
            step_s = (begin_s - self._asked_s) / (step - self._asked_at)
            gap = min(max(int(EVERY_S / max(step_s, 1e-6)), 1), 2 * self._gap)
            self._answer = largest([int(self._stop.is_set), int(wish), gap], self._device)
            self._asked_s, self._asked_at = begin_s, step
        self.seconds += time.perf_counter() - begin_s
        if told:
            self._stop.keep()
        return bool(told)
