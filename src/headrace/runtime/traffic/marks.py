"""Reads the current iterations of tasks from their mark files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from headrace.tracing.task_trace import MARK


class Marks:
    """Reads the mark files of a machine's tasks; files may appear later."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._open: dict[str, int] = {}
        self._known: dict[str, int] = {}

    def find(self) -> None:
        """Open the files that exist by now."""
        for task, path in self._files.items():
            if task not in self._open:
                with suppress(OSError):
                    self._open[task] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def poll(self) -> dict[str, int]:
        """Return tasks whose iteration has changed since the last poll."""
        changed = {}
        for task, descriptor in self._open.items():
            data = os.pread(descriptor, MARK.size, 0)
            if len(data) == MARK.size:
                (iteration,) = MARK.unpack(data)
                if self._known.get(task) != iteration:
                    changed[task] = self._known[task] = iteration
        return changed

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}
