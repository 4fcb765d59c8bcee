"""Which iterations tasks are at, from the files in which they say so."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

# As in `tracing/task_trace.py`, which would bring numpy along.
_MARK = struct.Struct("<q")


class Marks:
    """Reads the marks of a machine's tasks.

    Args:
        files: Of each task that has one, sooner or later.
    """

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._open: dict[str, int] = {}
        self._known: dict[str, int] = {}

    def find(self) -> None:
        """Open the files that are there by now."""
        for task, path in self._files.items():
            if task not in self._open:
                with suppress(OSError):
                    self._open[task] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def look(self) -> dict[str, int]:
        """Tasks that are at other iterations than at the last look."""
        changed = {}
        for task, descriptor in self._open.items():
            data = os.pread(descriptor, _MARK.size, 0)
            if len(data) == _MARK.size:
                (iteration,) = _MARK.unpack(data)
                if self._known.get(task) != iteration:
                    changed[task] = self._known[task] = iteration
        return changed

    def close(self) -> None:
        """Close all files."""
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open = {}
