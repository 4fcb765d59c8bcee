"""Waiting for conditions, and what a test may have left on the machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_SHARED = Path("/dev/shm")


LIMIT_S = 300.0
"""How long anything is waited for: far longer than it takes, so that no busy machine decides."""


def eventually(condition: Callable[[], object], limit_s: float = LIMIT_S) -> bool:
    """Wait until something is true; whether it became so before the limit.

    Tests assert this, which shows the condition that was waited for.
    """
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.02)
    return bool(condition())


def shared_memory() -> set[str]:
    """Names of all shared memory on this machine."""
    return set(os.listdir(_SHARED))


def is_left(before: set[str]) -> bool:
    """Whether shared memory stays that came later and that nobody uses.

    Other tests run at the same time: theirs is in use, or goes.
    """
    return not eventually(lambda: not _orphans(shared_memory() - before))


def _orphans(names: set[str]) -> set[str]:
    if not names:
        return names
    used = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            used += path.read_text()
        except OSError:  # it has ended, or is somebody else's
            continue
    return {name for name in names if f"{_SHARED}/{name}" not in used and (_SHARED / name).exists()}
