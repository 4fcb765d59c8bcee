"""How servers are told which optimizer to use: its name and plain numbers, never code.

Only optimizers that treat each number by itself can work on a piece of a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from headrace.core.errors import SpecError

OPTIMIZERS = (
    "SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD",
    "Rprop",
)  # fmt: skip
"""Those that servers know."""

SCALARS = frozenset({"step", "mu_product", "eta", "mu"})
"""What optimizers keep once per parameter; all else they keep for each of its numbers."""

# They say how to compute, which is the same for all servers.
_HOW = frozenset({"foreach", "fused", "capturable", "differentiable"})
_MOST = 1e30


def name_of(optimizer: torch.optim.Optimizer) -> str:
    """Name of an optimizer that servers know.

    Raises:
        SpecError: They do not.
    """
    kind = type(optimizer)
    name: str = kind.__name__
    if name not in OPTIMIZERS or getattr(torch.optim, name) is not kind:
        raise SpecError(
            f"parameter servers do not know the optimizer {kind.__module__}.{name}",
            f"use torch's {', '.join(OPTIMIZERS)}, or plan the job with `sync: ring`",
        )
    return name


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Options of each group, as JSON can say them; those of the optimizer alone."""
    known = defaults_of(name_of(optimizer))
    return [{name: _plain(group[name]) for name in known} for group in optimizer.param_groups]


def check_options(name: str, options: Sequence[Any]) -> list[dict[str, Any]]:
    """Options as an optimizer takes them, from what somebody sent.

    Raises:
        SpecError: There is no such optimizer, or an option is missing, unknown or no number.
    """
    if name not in OPTIMIZERS:
        raise SpecError(f"there is no optimizer {name[:40]!r}", f"use {', '.join(OPTIMIZERS)}")
    defaults = defaults_of(name)
    checked = []
    for group in options:
        if not isinstance(group, dict) or group.keys() != defaults.keys():
            raise SpecError(f"options of {name} are others", f"send {', '.join(defaults)}")
        for key, default in defaults.items():
            if not _is_like(group[key], default):
                raise SpecError(f"{name}'s {key} is something else", f"send one like {default}")
        checked.append({k: tuple(v) if isinstance(v, list) else v for k, v in group.items()})
    return checked


@lru_cache(maxsize=len(OPTIMIZERS))
def defaults_of(name: str) -> dict[str, Any]:
    """What options an optimizer has, and what they usually are."""
    kind = getattr(torch.optim, name)
    defaults = kind([torch.zeros(1)]).defaults
    return {key: value for key, value in defaults.items() if key not in _HOW}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, Tensor) else value


def _is_like(value: Any, default: Any) -> bool:
    if isinstance(default, tuple):
        is_list = isinstance(value, list) and len(value) == len(default)
        return is_list and all(_is_like(*each) for each in zip(value, default, strict=True))
    if isinstance(default, bool):
        return isinstance(value, bool)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and abs(value) < _MOST
