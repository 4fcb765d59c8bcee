"""Which steps of a long piece of work are done, so that a killed run goes on where it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import JsonValue


class ResumeLog:
    """Finished steps in a small file, one JSON value per line.

    A step reaches the disk before `finish` returns, so the file never says more than was done, and
    a line that a power cut tore apart counts for nothing.

    Args:
        path: The file; its folder must exist.
        fingerprint: Names the work. Steps that were recorded under another one are forgotten.
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
        """Whether any step is done."""
        return bool(self._results)

    def is_done(self, step: str) -> bool:
        """Whether a step was finished, in this run or an earlier one."""
        return step in self._results

    def result(self, step: str) -> JsonValue:
        """What a finished step left; nothing if it is not finished."""
        return self._results.get(step)

    def finish(self, step: str, result: JsonValue = None) -> None:
        """Record that a step is done, and what must be known of it later."""
        self._results[step] = result
        if self._is_written:
            with self._path.open("a", encoding="utf-8") as file:
                _write_lines(file.fileno(), [[step, result]])
            return
        # The old file may be another work's or end in a torn line.
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
            # What comes after a damaged line is done again.
            return


def _write_lines(fd: int, values: list[JsonValue]) -> None:
    os.write(fd, "".join(json.dumps(value) + "\n" for value in values).encode())
    os.fsync(fd)
