"""The journal of a sweep: one checksummed line per event, appended and flushed to the disk."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from headrace.core.errors import SpecError
from headrace.core.values import CheckedFile
from headrace.jobs.space import Setting


class TrialMade(CheckedFile):
    """A trial has its settings.

    Attributes:
        number: Number of the trial, from 0.
        settings: Its settings.
        memory_bytes: Estimated peak memory of its tasks; None if not estimated.
        time_s: Predicted time, up to a factor that all trials share; None if not predicted.
    """

    kind: Literal["made"] = "made"
    number: int
    settings: Mapping[str, Setting]
    memory_bytes: float | None = None
    time_s: float | None = None


class TrialBegun(CheckedFile):
    """A trial starts or is resumed.

    Attributes:
        number: Number of the trial.
        attempt: From 1.
        at_s: Time, in seconds since 1970.
    """

    kind: Literal["begun"] = "begun"
    number: int
    attempt: int
    at_s: float


class TrialEnded(CheckedFile):
    """A trial has ended; it never starts again.

    Attributes:
        number: Number of the trial.
        state: `done`, `stopped` by successive halving, or `failed`.
        figures: The last figures that it reported.
        problem: Why it failed.
        at_s: Time, in seconds since 1970.
    """

    kind: Literal["ended"] = "ended"
    number: int
    state: Literal["done", "stopped", "failed"]
    figures: Mapping[str, bool | int | float | str] = Field(default_factory=dict)
    problem: str = ""
    at_s: float


Event = TrialMade | TrialBegun | TrialEnded
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="kind")])


class Journal:
    """Events of a sweep, in a file that one process at a time appends to.

    Args:
        path: The file; it is created if missing.

    Attributes:
        events: All events, in order.

    Raises:
        SpecError: Another process runs the sweep, or a line is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise SpecError(
                f"{path.parent.name} is run by another process", "wait until it ends, or end it"
            ) from None
        self.events = read_journal(path)
        # The line that was written when the process was killed is not complete.
        os.ftruncate(self._file, _complete_bytes(path))

    def append(self, event: Event) -> None:
        """Append an event; it is on the disk when this returns."""
        data = event.to_text().encode() + b"\n"
        written = os.write(self._file, data)
        if written != len(data):
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise OSError(f"only {written} of {len(data)} bytes of the journal were written")
        os.fsync(self._file)
        self.events.append(event)

    def close(self) -> None:
        """Release the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_journal(path: Path) -> list[Event]:
    """Events of a journal, without a last line that is not complete.

    Raises:
        SpecError: A line is damaged.
    """
    if not path.exists():
        return []
    lines = path.read_bytes()[: _complete_bytes(path)].splitlines()
    events = []
    for number, line in enumerate(lines, start=1):
        try:
            document = json.loads(line)
            if "checksum" not in document:
                raise ValueError("no checksum")
            events.append(_EVENTS.validate_python(document))
        except (ValueError, TypeError, ValidationError):
            raise SpecError(
                f"line {number} of {path} is damaged",
                "start the sweep again under another name; finished trials are in its folder",
            ) from None
    return events


def _complete_bytes(path: Path) -> int:
    return path.read_bytes().rfind(b"\n") + 1
