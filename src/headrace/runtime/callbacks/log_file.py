"""Writes all output of tasks and driver to one JSON lines file."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.core.plan import Plan
from headrace.linux.disk import append_whole
from headrace.observability.levels import Level, Levels
from headrace.runtime.callbacks.base import RunCallback
from headrace.runtime.callbacks.line_buffer import LineBuffer
from headrace.runtime.cluster.placement_group import TaskPlacement
from headrace.runtime.run_dir.status import Status

LOG = "log.jsonl"
"""File name in the run folder."""

DRIVER = "driver"
"""Task name of the driver's lines."""


class LogFile(RunCallback):
    """Appends `{"at_s", "task", "machine", "level", "text"}` for every line.

    `at_s` is the time of arrival at the driver, about a second after the line was printed.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        append: Callable[[Path, bytes], None] = append_whole,
    ) -> None:
        self._path, self._clock, self._append = path, clock, append
        self._machines = {DRIVER: socket.gethostname()}
        self._lines = LineBuffer()
        self._levels: dict[str, Levels] = {}

    def began(self, plan: Plan, slots: Sequence[TaskPlacement]) -> None:
        """Record the machines of tasks."""
        self._machines |= {slot.task.name: slot.task.machine for slot in slots}

    def log(self, line: str) -> None:
        """Write a line shown to the user."""
        self._write(DRIVER, [line.encode()])

    def printed(self, task: str, data: bytes) -> None:
        """Write complete lines; buffer the rest."""
        self._write(task, self._lines.add(task, data))

    def finished(self, status: Status) -> None:
        """Write the remaining output and the outcome."""
        for task, line in self._lines.flush():
            self._write(task, [line])
        error = status.error
        text = f"the run ended: {status.state}"
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
            self._append(self._path, ("\n".join(written) + "\n").encode())
