"""Calls to shells that are under way: nobody waits for a single one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Then = Callable[[Any], None]
Failed = Callable[[Exception], None]


class Calls:
    """Collects answers as they come."""

    def __init__(self) -> None:
        self._open: dict[Any, tuple[Then, Failed]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def ask(self, ref: Any, then: Then, failed: Failed) -> None:
        """Have an answer, or the error that came instead, handled by `collect`.

        Args:
            ref: What a remote call returned.
            then: Takes the answer.
            failed: Takes an error of Ray, or one that the shell raised.
        """
        self._open[ref] = (then, failed)

    def collect(self, timeout_s: float) -> None:
        """Handle all answers that are there; wait for the first one up to some time."""
        import ray

        refs = list(self._open)
        if not refs:
            return
        first, _ = ray.wait(refs, num_returns=1, timeout=timeout_s)
        if not first:
            return
        done, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
        for ref in done:
            then, failed = self._open.pop(ref)
            try:
                answer = ray.get(ref, timeout=1.0)
            except Exception as error:
                failed(error)
            else:
                then(answer)
