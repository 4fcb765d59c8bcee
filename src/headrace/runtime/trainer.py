"""Run a script as a run's trainer: `python -m headrace.runtime.trainer PARENT MACHINE SCRIPT ...`.

The script runs as if python had been given it. It ends with its parent, however that ends.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys
import traceback
from types import TracebackType

from headrace.core.errors import HeadraceError
from headrace.training.heap import reuse_memory

_PR_SET_PDEATHSIG = 1
INTERRUPTED = 130
"""What shells say of a process that Ctrl-C ended."""


def main(arguments: list[str]) -> int:
    """Run the script; its exit code, if it does not end by itself with another."""
    parent, machine, script, *rest = arguments
    _end_with_parent(int(parent))
    reuse_memory()
    sys.argv = [script, *rest]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        runpy.run_path(script, run_name="__main__")
    except HeadraceError as error:
        sys.stderr.write(f"error: trainer on {machine}: {error.problem}\n  try: {error.remedy}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        sys.stderr.writelines(traceback.format_exception(_without_us(error, script)))
        return 1
    return 0


def _end_with_parent(parent: int) -> None:
    # A parent that ended just before is not heard of any more, so it is looked for too.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(INTERRUPTED)


def _without_us(error: Exception, script: str) -> Exception:
    """The error with a traceback that begins in the script."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
