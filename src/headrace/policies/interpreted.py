"""Interpret kernels that are not compiled yet, where compiling would take longer.

numba compiles the simulator for half a minute, once per installation. The first plan of a small
cluster calls it only a few times, so interpreting the same functions takes a few seconds. Results
are equal bit for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from types import FunctionType
from typing import Any

import numpy as np

_COMPILE_AFTER_S = 3.0
"""Estimated seconds of interpretation after which kernels are compiled at the same time; a shorter
command would only be slowed down."""


class KernelCaller:
    """Calls kernels, compiled or interpreted.

    A kernel is interpreted if it is neither compiled nor in numba's cache and its estimated time is
    within the budget. The budget is 0 by default: all kernels are compiled when first called.
    """

    def __init__(self) -> None:
        self.set_budget(0.0)

    def set_budget(
        self, budget_s: float, compile_kernels: Callable[[], Callable[[], object]] | None = None
    ) -> None:
        """Set the estimated seconds that interpretation may take in total.

        `compile_kernels` is called when kernels were interpreted for some seconds, and by `finish`
        if any was. It starts a compilation of all kernels and returns a function that waits for it.
        """
        self._budget_s = self._left_s = budget_s
        self._compile_kernels = compile_kernels
        self._wait: Callable[[], object] | None = None
        self._interpreted: set[Callable[..., Any]] = set()

    def choose(
        self,
        kernel: Callable[..., Any],
        args: tuple[Any, ...],
        estimate_s: float,
        num_calls: int = 1,
    ) -> Callable[..., Any]:
        """The kernel or its interpreted form.

        Args:
            kernel: The kernel.
            args: Its arguments; they determine what is compiled.
            estimate_s: Estimated time if interpreted.
            num_calls: Expected number of such choices; the first one requires a budget for all.
        """
        if not self._budget_s or _is_compiled(kernel, args):
            return kernel
        needed_s = estimate_s * (1 if kernel in self._interpreted else num_calls)
        if needed_s > self._left_s:
            if self._wait is not None:
                self._wait()
            return kernel
        if self._budget_s - self._left_s > _COMPILE_AFTER_S:
            self._compile()
        self._left_s -= estimate_s
        self._interpreted.add(kernel)
        return interpreted(kernel)

    def call(
        self, kernel: Callable[..., Any], *args: Any, estimate_s: float, num_calls: int = 1
    ) -> Any:
        """Call what `choose` returns."""
        return self.choose(kernel, args, estimate_s, num_calls)(*args)

    def finish(self) -> None:
        """Compile what was interpreted; from now on, all kernels are compiled when called."""
        if self._interpreted:
            self._compile()
        self.set_budget(0.0)

    def _compile(self) -> None:
        if self._wait is None and self._compile_kernels is not None:
            self._wait = self._compile_kernels()


CALLER = KernelCaller()
"""The caller of this process."""


@cache
def interpreted(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel as a Python function that calls only Python functions."""
    function = getattr(kernel, "py_func", kernel)
    plain = _with_globals(function, _namespace(function.__module__))

    @wraps(function)
    def call(*args: Any) -> Any:
        # Kernels divide by zero and let 64-bit hashes overflow.
        with np.errstate(all="ignore"):
            return plain(*args)

    return call


def _is_compiled(kernel: Any, args: tuple[Any, ...]) -> bool:
    """Whether a kernel is loaded or cached for these arguments."""
    if not hasattr(kernel, "py_func"):
        return True  # NUMBA_DISABLE_JIT is set
    signature = tuple(kernel.typeof_pyval(value) for value in args)
    if signature in kernel.overloads:
        return True
    # numba has no public function for this.
    stored = kernel._cache
    key = stored._index_key(signature, kernel.targetctx.codegen())
    return key in stored._cache_file._load_index()


@cache
def _namespace(module: str) -> dict[str, Any]:
    """Globals of a module in which all compiled functions are Python functions."""
    names = dict(vars(sys.modules[module]))
    for name, value in vars(sys.modules[module]).items():
        function = getattr(value, "py_func", None)
        if function is not None:
            own = names if function.__module__ == module else _namespace(function.__module__)
            names[name] = _with_globals(function, own)
    return names


def _with_globals(function: Any, names: dict[str, Any]) -> FunctionType:
    return FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
