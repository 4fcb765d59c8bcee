"""Identity of a process: what must be equal for a fork to replace a new process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_RELEVANT = ("PYTHON", "LD_", "NUMBA_", "TORCH", "OMP_", "MKL_", "KMP_", "OPENBLAS", "MALLOC_")
"""Prefixes of variables that are read during imports."""

_HANDLED = (
    "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PYTHONPATH",  # handled separately
    "PYTHONBREAKPOINT", "PYTHONDONTWRITEBYTECODE",  # read later; Ray sets the first one itself
)  # fmt: skip
"""Variables with these prefixes that may differ."""


def identity_of(environment: Mapping[str, str], process: int | str = "self") -> dict[str, Any]:
    """Identity of a new process with an environment, if `process` started it."""
    relevant = {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_RELEVANT) and name not in _HANDLED
    }
    relevant.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as in trainers
    return {
        "version": own_version(),
        "interpreter": sys.executable,
        "processes": namespace(process),
        "group": _control_group(process),
        "path": python_path(environment),
        "variables": relevant,
    }


def python_path(environment: Mapping[str, str]) -> list[str]:
    """Entries of PYTHONPATH as absolute paths: a fork server runs in another directory."""
    given = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [os.path.abspath(each) for each in given if each]


def _control_group(process: int | str) -> str:
    try:
        return Path(f"/proc/{process}/cgroup").read_text()
    except OSError:
        return ""


def namespace(process: int | str = "self") -> int:
    """PID namespace of a process; containers may share a disk."""
    try:
        return os.stat(f"/proc/{process}/ns/pid").st_ino
    except OSError:
        return 0


def own_version() -> str:
    """The version of this installation."""
    # Not an import statement: the package imports layers above this one.
    own: str = import_module("headrace").__version__
    return own
