"""Log of completed steps, from which a killed run resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import JsonValue


class ResumeLog:
    """Completed steps in a file, one JSON value per line.

    A step is fsynced before `finish` returns. A line truncated by a power failure is ignored.

    Args:
        path: The file; its folder must exist.
        fingerprint: Identifies the run. Steps recorded under another fingerprint are discarded.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._results: dict[str, JsonValue] = {}
        self._is_written = False
        if path.exists():
            self._read(path.read_text(encoding="utf-8", errors="replace").splitlines())

    @property
    def has_begun(self) -> bool:
        """Whether any step is complete."""
        return bool(self._results)

    def is_done(self, step: str) -> bool:
        """Whether a step was completed, in this run or an earlier one."""
        return step in self._results

    def result(self, step: str) -> JsonValue:
        """Result of a completed step; `None` if it is not complete."""
        return self._results.get(step)

    def finish(self, step: str, result: JsonValue = None) -> None:
        """Record a completed step and its result."""
        self._results[step] = result
        if self._is_written:
            with self._path.open("a", encoding="utf-8") as file:
                _write_lines(file.fileno(), [[step, result]])
            return
        # The old file may belong to another run or end in a truncated line.
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("w", encoding="utf-8") as file:
            steps: list[JsonValue] = [[name, left] for name, left in self._results.items()]
            _write_lines(file.fileno(), [self._fingerprint, *steps])
        fresh.replace(self._path)
        self._is_written = True

    def _read(self, lines: list[str]) -> None:
        try:
            if not lines or json.loads(lines[0]) != self._fingerprint:
                return
            for line in lines[1:]:
                step, result = json.loads(line)
                self._results[step] = result
        except (ValueError, TypeError):
            # Steps after a damaged line are repeated.
            return


def _write_lines(fd: int, values: list[JsonValue]) -> None:
    os.write(fd, "".join(json.dumps(value) + "\n" for value in values).encode())
    os.fsync(fd)
