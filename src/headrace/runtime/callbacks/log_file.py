"""All that a run's tasks print, and what the user was told, as JSON lines in one file."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.core.plan import Plan
from headrace.observability.levels import Level, Levels
from headrace.runtime.callbacks.base import RunListener
from headrace.runtime.cluster.placement_group import TaskPlacement
from headrace.runtime.run_dir.status import Status

LOG = "log.jsonl"
"""In the folder of a run: a JSON object per line."""

DRIVER = "driver"
"""Whom lines belong to that no task printed."""


class LogFile(RunListener):
    """Writes `{"at_s", "task", "machine", "level", "text"}` for every line.

    Args:
        path: The file; added to.
        clock: Seconds since 1970. A line gets the time at which it came here, about a second late.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._machines = {DRIVER: socket.gethostname()}
        self._halves: dict[str, bytes] = {}
        self._levels: dict[str, Levels] = {}

    def began(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
        """Learn where tasks are."""
        self._machines |= {slot.task.name: slot.task.machine for slot in slots}

    def said(self, line: str) -> None:
        """Write what the user was told."""
        self._write(DRIVER, [line.encode()])

    def printed(self, task: str, data: bytes) -> None:
        """Write whole lines; the rest waits."""
        *lines, self._halves[task] = (self._halves.get(task, b"") + data).split(b"\n")
        self._write(task, lines)

    def finished(self, status: Status) -> None:
        """Write what is left, and how the run ended."""
        for task, half in self._halves.items():
            if half:
                self._write(task, [half])
        self._halves.clear()
        error = status.error
        text = f"the run is over: {status.state}"
        if error is not None:
            text += f"; error: {error.problem}; try: {error.remedy}"
        self._write(DRIVER, [text.encode()])

    def _write(self, task: str, lines: Sequence[bytes]) -> None:
        levels = self._levels.setdefault(task, Levels())
        at_s = round(self._clock(), 3)
        written = []
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            level: Level = levels.of(text)
            entry = {
                "at_s": at_s,
                "task": task,
                "machine": self._machines.get(task, ""),
                "level": level.value,
                "text": text,
            }
            written.append(json.dumps(entry, ensure_ascii=False))
        if written:
            # One write of whole lines: a reader never sees half of one.
            with self._path.open("ab", buffering=0) as file:
                file.write(("\n".join(written) + "\n").encode())
