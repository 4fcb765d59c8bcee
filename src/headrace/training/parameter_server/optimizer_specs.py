"""Describe optimizers to servers by name and options, without code.

Only elementwise optimizers can work on a piece of a parameter.
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
"""Optimizers that servers support."""

SCALARS = frozenset({"step", "mu_product", "eta", "mu"})
"""Optimizer state kept once per parameter; all other state is kept per element."""

# Implementation options; servers use the defaults.
_IMPLEMENTATION_OPTIONS = frozenset({"foreach", "fused", "capturable", "differentiable"})
_MAX_VALUE = 1e30


def name_of(optimizer: torch.optim.Optimizer) -> str:
    """Name of a supported optimizer; raises `SpecError` for others."""
    kind = type(optimizer)
    name: str = kind.__name__
    if name not in OPTIMIZERS or getattr(torch.optim, name) is not kind:
        raise SpecError(
            f"parameter servers do not support the optimizer {kind.__module__}.{name}",
            f"use torch's {', '.join(OPTIMIZERS)}, or plan the job with `sync: ring`",
        )
    return name


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Options of each parameter group, as JSON values."""
    known = defaults_of(name_of(optimizer))
    return [{name: _plain(group[name]) for name in known} for group in optimizer.param_groups]


def check_options(name: str, options: Sequence[Any]) -> list[dict[str, Any]]:
    """Validate received options of an optimizer."""
    if name not in OPTIMIZERS:
        raise SpecError(f"there is no optimizer {name[:40]!r}", f"use {', '.join(OPTIMIZERS)}")
    defaults = defaults_of(name)
    checked = []
    for group in options:
        if not isinstance(group, dict) or group.keys() != defaults.keys():
            raise SpecError(f"wrong options of {name}", f"send {', '.join(defaults)}")
        for key, default in defaults.items():
            if not _is_like(group[key], default):
                raise SpecError(f"{name}'s {key} has a wrong type", f"send one like {default}")
        checked.append({k: tuple(v) if isinstance(v, list) else v for k, v in group.items()})
    return checked


@lru_cache(maxsize=len(OPTIMIZERS))
def defaults_of(name: str) -> dict[str, Any]:
    """Options of an optimizer with their defaults."""
    kind = getattr(torch.optim, name)
    defaults = kind([torch.zeros(1)]).defaults
    return {key: value for key, value in defaults.items() if key not in _IMPLEMENTATION_OPTIONS}


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
    return is_number and math.isfinite(value) and abs(value) < _MAX_VALUE
