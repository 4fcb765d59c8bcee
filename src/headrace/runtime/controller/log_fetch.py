"""Fetches logs and traces of tasks to the driver while they run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.runtime.controller.worker_group import PendingActorCalls
from headrace.runtime.protocol.actor_state import ActorState

# Traces are fetched in batches: a call costs 2 ms of CPU time in two processes at any size.
_TRACE_CHUNK_BYTES = 1 << 18
_TRACE_INTERVAL_S = 10.0

Sink = Callable[[str, bytes], None]
"""Receives a task name and the next bytes of its file."""


class LogReader:
    """Reads logs and traces of tasks incrementally, one pending chunk per file."""

    def __init__(
        self, calls: PendingActorCalls, actor: Callable[[str], Any], sinks: Mapping[str, Sink]
    ) -> None:
        self._calls, self._actor, self._sinks = calls, actor, sinks
        self._read: dict[tuple[str, str], int] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._reading: set[tuple[str, str]] = set()
        self._next_s: dict[str, float] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a chunk is being fetched."""
        return bool(self._reading)

    def update(self, task: str, state: ActorState, is_calm: bool) -> None:
        """Update a task's file sizes and fetch new data; if `is_calm`, short traces are delayed."""
        now_s = time.monotonic()
        sizes = {"log": state.log_bytes, "trace": state.trace_bytes}
        for what in self._sinks:
            self._sizes[task, what] = size = sizes[what]
            waits = is_calm and what == "trace" and state.code is None
            is_much = size - self._read.get((task, what), 0) >= _TRACE_CHUNK_BYTES
            if waits and not is_much and now_s < self._next_s.get(task, 0.0):
                continue
            if what == "trace":
                self._next_s[task] = now_s + _TRACE_INTERVAL_S
            self._fetch(task, what)

    def restart(self, task: str) -> None:
        """Read the files of a task from the start: it has a new actor."""
        for what in self._sinks:
            self._read.pop((task, what), None)
            self._sizes.pop((task, what), None)

    def _fetch(self, task: str, what: str) -> None:
        key = (task, what)
        offset = self._read.get(key, 0)
        if key in self._reading or self._sizes.get(key, 0) <= offset:
            return
        self._reading.add(key)

        def then(data: bytes) -> None:
            self._reading.discard(key)
            self._read[key] = offset + len(data)
            self._sinks[what](task, data)
            if data:
                self._fetch(task, what)

        def failed(error: Exception) -> None:
            self._reading.discard(key)

        self._calls.add(getattr(self._actor(task), what).remote(offset), then, failed)
