"""Splits the output of tasks, which arrives in chunks, into lines."""

from __future__ import annotations


class LineBuffer:
    """Keeps the incomplete last line of each task."""

    def __init__(self) -> None:
        self._partial: dict[str, bytes] = {}

    def add(self, task: str, data: bytes) -> list[bytes]:
        """Complete lines after a chunk, without newlines."""
        *lines, self._partial[task] = (self._partial.get(task, b"") + data).split(b"\n")
        return lines

    def flush(self) -> list[tuple[str, bytes]]:
        """Remove and return the incomplete lines, with their tasks."""
        left = [(task, line) for task, line in self._partial.items() if line]
        self._partial.clear()
        return left
