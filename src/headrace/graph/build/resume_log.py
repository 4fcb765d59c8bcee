"""Log of completed steps, from which a killed run resumes."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import JsonValue

from headrace.linux.atomic_write import atomic_write


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
                os.write(file.fileno(), _to_lines([step, result]).encode())
                os.fsync(file.fileno())
            return
        # The old file may belong to another run or end in a truncated line.
        steps = [[name, left] for name, left in self._results.items()]
        atomic_write(self._path, _to_lines(self._fingerprint, *steps), sync=True)
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


def _to_lines(*values: JsonValue) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)
