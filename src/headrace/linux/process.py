"""What a process does, as Linux tells in `/proc`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STOPPED = "T"
_WAITS_FOR_DISK = "D"
# Positions after the name in `/proc/PID/stat`.
_STATE, _SESSION = 0, 3
_TIMES = slice(11, 15)
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Activity:
    """What the processes of a session have done so far.

    Attributes:
        cpu_s: CPU time of all threads.
        waits_for_disk: Whether a thread waits for a disk now; it cannot be killed meanwhile.
    """

    cpu_s: float = 0.0
    waits_for_disk: bool = False


def is_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP) has stopped a process; a debugger does not count."""
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return bool(fields) and fields[_STATE] == _STOPPED


def session_activity(session: int) -> Activity:
    """Activity of all processes of a session."""
    cpu_s, waits_for_disk = 0.0, False
    for path in _numbered(Path("/proc")):
        fields = _fields(path / "stat")
        if not fields or int(fields[_SESSION]) != session:
            continue
        cpu_s += sum(map(int, fields[_TIMES])) / _TICKS
        states = [_fields(task / "stat")[:1] for task in _numbered(path / "task")]
        waits_for_disk = waits_for_disk or [_WAITS_FOR_DISK] in states
    return Activity(cpu_s, waits_for_disk)


def _numbered(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from [each for each in folder.iterdir() if each.name.isdigit()]


def _fields(path: Path) -> list[str]:
    """Fields after the name, which may contain spaces; empty if the process has exited."""
    with suppress(OSError):
        return path.read_text(errors="replace").rpartition(")")[2].split()
    return []
