"""Sync rounds of a server: all trainers push gradients, and the last push applies them.

Requests are idempotent, because clients repeat them after a lost connection or a restart.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from headrace.core.errors import SpecError

Push = TypeVar("Push")


class SyncRounds(ABC, Generic[Push]):
    """Sync rounds, numbered from 1; shared by the request threads of all trainers.

    Subclasses hold `_changed` when they call `_is_new` and `_collect`.
    """

    def __init__(self, num_trainers: int) -> None:
        self._num_trainers = num_trainers
        self._changed = threading.Condition()
        self._pushes: dict[int, dict[int, Push]] = {}
        self._complete: set[int] = set()
        self._is_closed = False

    @property
    @abstractmethod
    def num_rounds(self) -> int:
        """Number of completed sync rounds."""

    @abstractmethod
    def _apply(self, pushes: list[Push]) -> None:
        """Apply the pushes of all trainers, given in rank order so that sums are deterministic."""

    def missing(self) -> list[int]:
        """Ranks that have not pushed all their gradients yet."""
        with self._changed:
            return [rank for rank in range(self._num_trainers) if rank not in self._complete]

    def close(self) -> None:
        """Release all waiting requests."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _is_done(self, number: int) -> bool:
        return number <= self.num_rounds

    def _is_next(self, number: int) -> bool:
        return number == self.num_rounds + 1

    def _check_next(self, number: int, what: str) -> None:
        if not self._is_next(number):
            raise SpecError(
                f"{what}, {self.num_rounds} are done", "call step() equally often on all trainers"
            )

    def _is_new(self, rank: int, number: int) -> bool:
        """Whether a push is of the next sync round, not a completed one; else `SpecError`."""
        if self._is_done(number):
            return False
        self._check_next(number, f"rank {rank} pushed gradients of step {number}")
        return True

    def _collect(self, rank: int, push: Push, piece: int = 0, num_pieces: int = 1) -> None:
        """Add a piece of a trainer's push, or replace it; the last missing one applies all."""
        before = self._pushes.get(rank, {})
        pieces = {number: each for number, each in before.items() if number < num_pieces}
        pieces[piece] = push
        self._pushes[rank] = pieces
        # A trainer that resumes may push other gradients, in another number of pieces.
        if len(pieces) == num_pieces:
            self._complete.add(rank)
        else:
            self._complete.discard(rank)
        if len(self._complete) < self._num_trainers:
            return
        pushes = [own[number] for _, own in sorted(self._pushes.items()) for number in sorted(own)]
        self._pushes.clear()
        self._complete.clear()
        self._apply(pushes)
        self._changed.notify_all()

    def _wait(self, is_ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ready, the timeout, or `close`; returns whether it is ready."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or is_ready(), timeout_s)
            return is_ready()
