"""How hot loops are compiled.

`hot` functions only touch arrays they are given. Without numba's reference counts (`_nrt`) and inlined into their
caller they cost what the same lines in C would; with them a call that passes thirty arrays takes microseconds
(measured: the kernel is 30 times slower). In return a hot function cannot allocate, not even a temporary. Division
follows numpy (`x / 0` is infinity), which also lets LLVM vectorise loops that divide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def hot(function: F) -> F:
    """Compile a function that is called from other hot functions."""
    compiled: F = njit(cache=True, error_model="numpy", _nrt=False, forceinline=True)(function)
    return compiled


def hot_loop(function: F) -> F:
    """Compile the outermost function, which Python calls, or one too large to be copied into its callers."""
    compiled: F = njit(cache=True, error_model="numpy", _nrt=False)(function)
    return compiled
