"""Processes that do not outlive the process that started them.

    python -m headrace.linux.parent_death PARENT COMMAND...

runs a command that receives SIGTERM when its parent, process PARENT, exits.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with_parent(by: signal.Signals, parent: int | None = None) -> None:
    """Send this process a signal when the thread that started it exits; only on Linux.

    Args:
        by: The signal.
        parent: PID of the parent, which may have exited before this call; not checked if None.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), by)


if __name__ == "__main__":
    end_with_parent(signal.SIGTERM, int(sys.argv[1]))
    # The signal is kept: the process stays the same.
    os.execv(sys.argv[2], sys.argv[2:])
