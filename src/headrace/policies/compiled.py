"""How hot loops are compiled.

`hot` functions only touch arrays they are given. Without numba's reference counts (`_nrt`) and
inlined into their caller they cost what the same lines in C would; with them a call that passes
thirty arrays takes microseconds (measured: the kernel is 30 times slower). In return a hot function
cannot allocate, not even a temporary. Division follows numpy (`x / 0` is infinity), which also lets
LLVM vectorise loops that divide.

To LLVM, a function that takes all arrays of a rehearsal has hundreds of arguments; compiling takes
long. Hence no entry points that nobody uses (this halves the time), and the cache keeps only what
Python calls, with all that was inlined into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])

# `Any`, because numba's types do not know all of them.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
_INNER: dict[str, Any] = {**_OPTIONS, "no_cpython_wrapper": True}
_INLINED: dict[str, Any] = {**_INNER, "forceinline": True}
_RULE: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True}
_PART_OF_RULE: dict[str, Any] = {**_RULE, "no_cpython_wrapper": True}


def hot(function: F) -> F:
    """Compile a function that compiled functions call; a call from Python crashes the process."""
    compiled: F = njit(**_INLINED)(function)
    return compiled


def warm(function: F) -> F:
    """Compile a function that is called too rarely, or from too many places, to be inlined."""
    compiled: F = njit(**_INNER)(function)
    return compiled


def hot_loop(function: F) -> F:
    """Compile the outermost function, which Python calls, or one too large to be inlined."""
    compiled: F = njit(**_OPTIONS, cache=True)(function)
    return compiled


def rule(function: F) -> F:
    """Compile a policy's rule; Python calls it, with flows of a rehearsal or with live ones."""
    compiled: F = njit(**_RULE, cache=True)(function)
    return compiled


def part_of_rule(function: F) -> F:
    """Compile what rules call; a call from Python crashes the process."""
    compiled: F = njit(**_PART_OF_RULE)(function)
    return compiled
