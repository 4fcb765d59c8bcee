"""Try a step before it is made: an optimizer that fails half-way would leave its state in pieces.

Values of tensors cannot make a step fail. Options and step counts can: torch divides by
`1 - beta**step`. So a step of one element with the same ones shows whether a step fails.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache

import torch

from headrace.core.errors import SpecError
from headrace.training.parameter_server.optimizer_specs import OPTIMIZERS, SCALARS, defaults_of
from headrace.training.parameter_server.types import Options

FAILURES = (ArithmeticError, KeyError, RuntimeError, TypeError, ValueError)
"""What torch raises for options and state outside its domain."""

# Options with which an optimizer keeps more state.
_MORE_STATE: Options = {"momentum": 0.5, "amsgrad": True, "centered": True}


def try_step(
    optimizer: str, options: Options, dtype: torch.dtype, scalars: Mapping[str, float] | None = None
) -> frozenset[str]:
    """Make a step of one element; returns the names of the optimizer's state.

    Args:
        optimizer: Name of a torch optimizer.
        options: Options of a parameter group, of the right types.
        dtype: Dtype of the element.
        scalars: State to start from; see `SCALARS`.

    Raises:
        SpecError: The optimizer does not accept the options, or fails.
    """
    kind = getattr(torch.optim, optimizer)
    element = torch.zeros(1, dtype=dtype, requires_grad=True)
    element.grad = torch.zeros(1, dtype=dtype)
    known = inspect.signature(kind).parameters
    try:
        # Only arguments are checked, not the options of a group.
        kind([element], **{name: value for name, value in options.items() if name in known})
        tried = kind([{"params": [element], **options}])
        tried.step()
        for name, value in (scalars or {}).items():
            tried.state[element][name] = torch.tensor(value, dtype=torch.get_default_dtype())
        tried.step()
    except FAILURES as error:
        raise SpecError(
            f"{optimizer} does not work with these options: {error}",
            "use options and a state of the same optimizer",
        ) from None
    return frozenset(tried.state[element])


@lru_cache(maxsize=len(OPTIMIZERS))
def state_names(optimizer: str) -> frozenset[str]:
    """Names of all state that an optimizer may keep, with any options."""
    defaults = defaults_of(optimizer)
    more = {name: value for name, value in _MORE_STATE.items() if name in defaults}
    variants = [defaults, *({**defaults, name: value} for name, value in more.items())]
    return frozenset().union(*(try_step(optimizer, each, torch.float32) for each in variants))


def check_scalars(optimizer: str, name: str, values: list[float]) -> None:
    """Check state that is kept once per parameter; raises `SpecError`."""
    if name in SCALARS and not all(0 <= value < float("inf") for value in values):
        raise SpecError(f"{optimizer}'s {name} is not finite or below 0", "send a valid state")
