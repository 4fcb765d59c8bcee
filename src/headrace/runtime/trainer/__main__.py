"""Run a script as a run's trainer: `python -m headrace.runtime.trainer PARENT MACHINE SCRIPT ...`.

The script runs as if python had been given it. If it has a function `train_func` then and did not
call `headrace.train` itself, that is called too. It ends with its parent, however that ends.
"""

from __future__ import annotations

import ctypes
import io
import os
import re
import signal
import sys
import traceback
from types import ModuleType, TracebackType

from headrace.core.errors import HeadraceError
from headrace.linux.malloc import reuse_memory

_PR_SET_PDEATHSIG = 1
_LOST_PEER = re.compile(
    r"gloo/transport.*(?P<why>Connection (closed|reset) by peer|Broken pipe|Connection refused)"
)
"""What gloo says when the process on the other side ended. Its traceback explains nothing."""

INTERRUPTED = 130
"""What shells say of a process that Ctrl-C ended."""


def main(arguments: list[str]) -> int:
    """Run the script; its exit code, if it does not end by itself with another."""
    parent, machine, script, *rest = arguments
    _end_with_parent(int(parent))
    # Whoever starts this may have blocked what asks it to end, as a worker of Ray does.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGALRM))
    # Torch would warn of every machine whose address has no name, which harms nobody.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    reuse_memory()
    sys.argv = [script, *rest]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        _train(_run(script))
    except HeadraceError as error:
        sys.stderr.write(f"error: trainer on {machine}: {error.problem}\n  try: {error.remedy}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if lost := _LOST_PEER.search(str(error)):
            sys.stderr.write(f"error: trainer on {machine}: lost another trainer: {lost['why']}\n")
            return 1
        sys.stderr.writelines(traceback.format_exception(_without_us(error)))
        return 1
    return 0


def _run(script: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    # It stays there: what the script defines is looked up in it later.
    sys.modules["__main__"] = module
    with io.open_code(os.path.abspath(script)) as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module


def _train(module: ModuleType) -> None:
    function = getattr(module, "train_func", None)
    if not callable(function):
        return
    # Only now: a script may do without torch.
    from headrace.runtime.trainer.context import TrainContext, train

    if not TrainContext.num_made:
        train(function)


def _end_with_parent(parent: int) -> None:
    # A parent that ended just before is not heard of any more, so it is looked for too.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(INTERRUPTED)


def _without_us(error: Exception) -> Exception:
    """The error with a traceback that begins in the user's code."""
    trace: TracebackType | None = error.__traceback__
    own = os.path.dirname(__file__)
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == own:
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
