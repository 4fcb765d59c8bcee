"""Entry point of trainer processes: `python -m headrace.runtime.trainer PARENT MACHINE SCRIPT ...`.

The script runs as with `python SCRIPT`. If it defines `train_func` and does not call
`headrace.train`, `train_func` is called afterwards. The process exits when PARENT exits.
"""

from __future__ import annotations

import atexit
import ctypes
import io
import os
import re
import signal
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

from headrace.core.errors import LOST_PEER_CODE, HeadraceError
from headrace.linux.malloc import reuse_memory

_PR_SET_PDEATHSIG = 1
_LOST_PEER = re.compile(
    r"gloo/transport.*(?P<why>Connection (closed|reset) by peer|Broken pipe|Connection refused)"
)
"""Error text of gloo after a peer process exited; its traceback is of no use."""

ESTIMATE_VARIABLE = "HEADRACE_ESTIMATE"
"""Environment variable with the path of a request to estimate the script's step."""

INTERRUPTED = 130
"""Exit code of a process that SIGINT stopped, as shells report it."""


_SIGNALS = (signal.SIGINT, signal.SIGALRM)


def main(arguments: list[str]) -> int:
    """Run the script and return its exit code; trainers that worked together end the process."""
    code = _main(arguments)
    ddp = sys.modules.get("headrace.training.ddp")
    if ddp is not None and ddp.has_left_group():
        _end(code)
    return code


def _end(code: int) -> NoReturn:
    """End the process without destroying its objects: see `leave_group`."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _main(arguments: list[str]) -> int:
    parent, machine, script, *rest = arguments
    _end_with_parent(int(parent))
    # Suppress torch's warnings about machines without a host name.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    reuse_memory()
    sys.argv = [script, *rest]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    try:
        # Whoever starts a trainer blocks SIGINT, so that it is never raised outside of this block;
        # Ray workers block SIGALRM too.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        try:
            _estimate_if_requested()
            _train(_run(script))
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    except HeadraceError as error:
        sys.stderr.write(f"error: trainer on {machine}: {error.problem}\n  try: {error.remedy}\n")
        return error.exit_code
    except SystemExit as end:
        return _code_of(end)
    except KeyboardInterrupt:
        # Threads that still run can disturb the callbacks of the exit, which is no news then.
        sys.unraisablehook = lambda _: None
        return INTERRUPTED
    except Exception as error:
        if lost := lost_peer(error):
            sys.stderr.write(f"error: trainer on {machine}: {lost}\n")
            return LOST_PEER_CODE
        sys.stderr.writelines(traceback.format_exception(_without_us(error)))
        return 1
    return 0


def lost_peer(error: Exception) -> str:
    """What to say of an error that another trainer's exit has caused; empty for other errors."""
    found = _LOST_PEER.search(str(error))
    return "" if found is None else f"lost another trainer: {found['why']}"


def _code_of(end: SystemExit) -> int:
    """Exit code that the interpreter gives to `sys.exit`."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    sys.stderr.write(f"{end.code}\n")
    return 1


def _estimate_if_requested() -> None:
    if path := os.environ.get(ESTIMATE_VARIABLE):
        from headrace.profiling.step_estimate.script import EstimateRequest, ScriptEstimator

        ScriptEstimator(EstimateRequest.model_validate_json(Path(path).read_bytes())).install()


def _run(script: str) -> ModuleType:
    module = ModuleType("__main__")
    module.__file__ = script
    module.__dict__["__builtins__"] = __builtins__
    # Must stay registered: code of the script resolves names in it later.
    sys.modules["__main__"] = module
    with io.open_code(os.path.abspath(script)) as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    exec(code, module.__dict__)
    return module


def _train(module: ModuleType) -> None:
    function = getattr(module, "train_func", None)
    if not callable(function):
        return
    # Imported late: a script may not need torch.
    from headrace.runtime.trainer.context import TrainContext, train

    if not TrainContext.num_made:
        train(function)


def _end_with_parent(parent: int) -> None:
    # PDEATHSIG is not sent if the parent exited before prctl(), so check the parent too.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(INTERRUPTED)


def _without_us(error: Exception) -> Exception:
    """Return the error with a traceback that starts in the user's code."""
    trace: TracebackType | None = error.__traceback__
    own = os.path.dirname(__file__)
    while trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == own:
        trace = trace.tb_next
    return error.with_traceback(trace or error.__traceback__)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
