"""What tasks print and measure, brought to the driver while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.runtime.controller.worker_group import PendingActorCalls

# Of a trace that can wait: a call takes 2 ms of two processes' time, whatever it carries.
_PIECE_BYTES = 1 << 18
_PIECE_S = 10.0

Take = Callable[[str, bytes], None]
"""Takes the name of a task, and bytes that follow those before."""


class LogReader:
    """Reads logs and traces of tasks from where it stopped, one piece of each at a time.

    Args:
        calls: Carry the pieces.
        actor: Gives the handle of a task's shell.
        take: Takes pieces of each kind: `log` and `trace`.
    """

    def __init__(
        self, calls: PendingActorCalls, actor: Callable[[str], Any], take: Mapping[str, Take]
    ) -> None:
        self._calls, self._actor, self._take = calls, actor, take
        self._read: dict[tuple[str, str], int] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._reading: set[tuple[str, str]] = set()
        self._next_s: dict[str, float] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a piece is on its way."""
        return bool(self._reading)

    def see(self, task: str, state: Mapping[str, Any], is_calm: bool) -> None:
        """Take note of how much there is to read.

        Args:
            task: Whose.
            state: What its shell said.
            is_calm: Whether little of a trace can wait: nobody looks at it while tasks run.
        """
        now_s = time.monotonic()
        for what in self._take:
            self._sizes[task, what] = size = state[f"{what}_bytes"]
            waits = is_calm and what == "trace" and state["code"] is None
            is_much = size - self._read.get((task, what), 0) >= _PIECE_BYTES
            if waits and not is_much and now_s < self._next_s.get(task, 0.0):
                continue
            if what == "trace":
                self._next_s[task] = now_s + _PIECE_S
            self._fetch(task, what)

    def _fetch(self, task: str, what: str) -> None:
        key = (task, what)
        offset = self._read.get(key, 0)
        if key in self._reading or self._sizes.get(key, 0) <= offset:
            return
        self._reading.add(key)

        def then(data: bytes) -> None:
            self._reading.discard(key)
            self._read[key] = offset + len(data)
            self._take[what](task, data)
            if data:
                self._fetch(task, what)

        def failed(error: Exception) -> None:
            self._reading.discard(key)

        self._calls.ask(getattr(self._actor(task), what).remote(offset), then, failed)
