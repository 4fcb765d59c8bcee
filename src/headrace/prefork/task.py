"""Turn a fork of a fork server into a task."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

TRAINER_MODULE = "headrace.runtime.trainer"
"""The module that starts with SIGINT blocked, and unblocks it where it can handle it."""

_PR_SET_PDEATHSIG = 1


def become(request: Mapping[str, Any]) -> int:
    """Run a task in a fork, as if it had been started by its command; returns the exit code.

    Args:
        request: `command` (interpreter, `-m`, module, arguments), `environment`, `folder`, `nice`,
            `cores`, `max_files`.
    """
    server = os.getppid()
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        return 1
    _, _, module, *arguments = request["command"]
    is_trainer = module == TRAINER_MODULE
    signal.pthread_sigmask(signal.SIG_SETMASK, (signal.SIGINT,) if is_trainer else ())
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.chdir(request["folder"])
    environment: dict[str, str] = request["environment"]
    os.environ.clear()
    os.environ.update(environment)
    _apply_limits(request)
    _apply_threads(environment)
    _reseed()
    gc.enable()
    set_command_line(request["command"])
    if is_trainer:
        # The trainer checks that its parent is alive; here the parent is the server.
        arguments[0] = str(server)
    code: int = import_module(f"{module}.__main__").main(arguments)
    return code


def _apply_limits(request: Mapping[str, Any]) -> None:
    """Apply what a child of the client would have inherited."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
    with suppress(OSError):
        os.sched_setaffinity(0, request["cores"])
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["max_files"]))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(request["oom_score_adj"]))


def _apply_threads(environment: Mapping[str, str]) -> None:
    """Set the number of threads; OpenMP read its variable when it was loaded."""
    torch, number = sys.modules.get("torch"), environment.get("OMP_NUM_THREADS", "")
    if torch is not None and number.isdigit() and int(number) > 0:
        torch.set_num_threads(int(number))


def _reseed() -> None:
    """Reseed numpy; Python's own generator reseeds itself after a fork."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(None)


def set_command_line(words: Sequence[str]) -> None:
    """Overwrite this process' command line, as `ps` shows it."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])
    except (OSError, IndexError, ValueError):
        return
    room = end - begin
    if begin <= 0 or room <= 1:
        return
    text = b"\0".join(word.encode() for word in words)[: room - 1]
    ctypes.memmove(begin, text.ljust(room, b"\0"), room)
