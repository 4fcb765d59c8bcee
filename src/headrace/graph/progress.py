"""Which steps of a long piece of work are done, so that a killed run goes on where it was."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import JsonValue


class Progress:
    """Finished steps in a small file.

    The file is replaced as a whole and reaches the disk before `finish` returns, so it never says
    more than was done.

    Args:
        path: The file; its folder must exist.
        fingerprint: Names the work. Steps that were recorded under another one are forgotten.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._results: dict[str, JsonValue] = {}
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["fingerprint"] == fingerprint:
                self._results = dict(found["steps"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            # No file or a damaged one only means that nothing can be skipped.
            pass

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
        text = json.dumps({"fingerprint": self._fingerprint, "steps": self._results})
        fresh = self._path.with_suffix(".new")
        with fresh.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
