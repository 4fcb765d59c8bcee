"""Compiler options of the numba kernels.

`hot` functions only access their array arguments. Without numba's reference counts (`_nrt`) and
inlined into their caller they are as fast as C; with reference counts a call with thirty arrays
takes microseconds (measured: the kernel is 30 times slower). A hot function cannot allocate, not
even a temporary. Division follows numpy (`x / 0` is infinity), so LLVM can vectorise it.

A function with all arrays of a simulation has hundreds of LLVM arguments and compiles slowly.
Unused entry points are therefore disabled, which halves the time, and the cache holds only
functions called from Python, with everything inlined into them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

# `Any`, because numba's type hints lack some options.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True}
_INLINED: dict[str, Any] = {**_INNER, "forceinline": True}
_RULE: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}
_PART_OF_RULE: dict[str, Any] = {**_RULE, "no_cpython_wrapper": True}


def hot(function: F) -> F:
    """Compile and inline a function called by compiled code; a call from Python crashes."""
    compiled: F = njit(**_INLINED)(function)
    return compiled


def warm(function: F) -> F:
    """Compile without inlining: for functions called rarely or from many places."""
    compiled: F = njit(**_INNER)(function)
    return compiled


def hot_loop(function: F) -> F:
    """Compile an outermost function called from Python, or one too large to inline."""
    compiled: F = njit(**_OPTIONS, cache=True)(function)
    return compiled


def rule(function: F) -> F:
    """Compile a policy's rule, called from Python with simulated or live flows."""
    compiled: F = njit(**_RULE, cache=True)(function)
    return compiled


def part_of_rule(function: F) -> F:
    """Compile a function called by rules; a call from Python crashes the process."""
    compiled: F = njit(**_PART_OF_RULE)(function)
    return compiled
