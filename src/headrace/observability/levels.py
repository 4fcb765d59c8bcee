"""Severity of log lines printed by tasks, derived from keywords."""

from __future__ import annotations

import re
from enum import StrEnum

_ERROR = re.compile(r"error|exception|fatal|critical|panic|killed|out of memory", re.IGNORECASE)
_WARNING = re.compile(r"\bwarn(ing|s)?\b|Warning:", re.IGNORECASE)
_TRACEBACK = "Traceback (most recent call last)"


class Level(StrEnum):
    """Severity of a line."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Levels:
    """Classifies the lines of one task, which must be passed in order because of tracebacks."""

    def __init__(self) -> None:
        self._is_in_traceback = False

    def of(self, line: str) -> Level:
        """Severity of the next line: by keywords, or as part of a traceback."""
        if _TRACEBACK in line:
            self._is_in_traceback = True
            return Level.ERROR
        if self._is_in_traceback:
            # The first line without indentation names the error and ends the traceback.
            self._is_in_traceback = line.startswith((" ", "\t"))
            return Level.ERROR
        if _ERROR.search(line):
            return Level.ERROR
        return Level.WARNING if _WARNING.search(line) else Level.INFO
