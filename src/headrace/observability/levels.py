"""How bad a line is that a task printed, as far as its words tell."""

from __future__ import annotations

import re
from enum import StrEnum

_ERROR = re.compile(r"error|exception|fatal|critical|panic|killed|out of memory", re.IGNORECASE)
_WARNING = re.compile(r"\bwarn(ing|s)?\b|Warning:", re.IGNORECASE)
_TRACEBACK = "Traceback (most recent call last)"


class Level(StrEnum):
    """How bad a line is."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Levels:
    """Levels of the lines of one task, which must come in order: a traceback has many."""

    def __init__(self) -> None:
        self._is_in_traceback = False

    def of(self, line: str) -> Level:
        """How bad the next line is: its words say so, or it belongs to a traceback."""
        if _TRACEBACK in line:
            self._is_in_traceback = True
            return Level.ERROR
        if self._is_in_traceback:
            # The first line that is not indented names the error and ends the traceback.
            self._is_in_traceback = line.startswith((" ", "\t"))
            return Level.ERROR
        if _ERROR.search(line):
            return Level.ERROR
        return Level.WARNING if _WARNING.search(line) else Level.INFO
