"""Metrics that a training script reports."""

from __future__ import annotations

import math
import sys
from contextlib import suppress
from typing import Any, SupportsFloat

from headrace.core.errors import SpecError
from headrace.runtime.protocol.finite_check import check_figures
from headrace.runtime.protocol.run_context import current_run
from headrace.runtime.protocol.trainer_messages import Report, line_of, send

_PLAIN = (bool, int, float, str)


def report(**figures: SupportsFloat | str) -> None:
    """Show metrics of a script: in the display of `headrace run`, else as a line on stdout.

    Args:
        **figures: Metrics by name; `epoch`, `loss` and `accuracy` have their own place in the
            display. One-element tensors are accepted.

    Raises:
        SpecError: A metric is neither a number nor a string.
        NotFiniteError: A loss is not finite, and the run does not allow that.

    Example:
        >>> import headrace
        >>> headrace.report(epoch=3, loss=0.25)
        epoch 3  loss 0.25
    """
    plain = {name: _plain(name, value) for name, value in figures.items()}
    run = current_run()
    if run is None:
        sys.stdout.write(line_of(plain) + "\n")
        sys.stdout.flush()
        return
    send(run.messages, Report(plain))
    check_figures(run, plain)


def _plain(name: str, value: Any) -> Any:
    """Convert numpy and torch scalars to values that JSON supports."""
    if not isinstance(value, _PLAIN) and hasattr(value, "item"):
        with suppress(ValueError, RuntimeError, TypeError):
            value = value.item()
    if not isinstance(value, _PLAIN):
        raise SpecError(
            f"{name} was reported as {type(value).__name__}", "report a number or a string"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
