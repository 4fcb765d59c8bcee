"""What is kept of a training: the best model so far, and the state of whatever can be put back."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headrace.core.errors import SpecError

FILE_NAME = "best.pt"


class BestKeeper:
    """Keeps the best of all models it is shown.

    Args:
        folder: Where the file goes; none where another trainer writes it.

    Attributes:
        best: How good the best one was; none before the first.
        num_worse: How many were shown since.
    """

    def __init__(self, folder: Path | None) -> None:
        self.best: float | None = None
        self.num_worse = 0
        self._folder = folder
        self._model: dict[str, Any] | None = None

    @property
    def path(self) -> Path | None:
        """The file: a `state_dict`, as `torch.save` writes it."""
        return None if self._folder is None else self._folder / FILE_NAME

    def show(self, score: float, state: Callable[[], dict[str, Any]], patience: int) -> bool:
        """Keep a model if it is the best.

        Args:
            score: How good it is; more is better.
            state: Gives what to keep; only called if that is wanted.
            patience: How many may follow without a better one.

        Returns:
            Whether it is time to stop. A score that is no number is never better.
        """
        if self.best is None or score > self.best:
            self.best, self.num_worse = score, 0
            if self._folder is not None:
                self._model = state()
                _save(self._model, self._folder / FILE_NAME)
        else:
            self.num_worse += 1
        return self.num_worse >= patience

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: also the best model, whose file may be lost with a machine."""
        return {"best": self.best, "num_worse": self.num_worse, "model": self._model}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as another keeper was when it was asked for its state; the file is written anew."""
        self.best, self.num_worse = state["best"], state["num_worse"]
        if self._folder is not None and state["model"] is not None:
            self._model = state["model"]
            _save(self._model, self._folder / FILE_NAME)


def _save(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whoever reads it, or ends this process now, finds the old one or the new one.
    partial = path.with_name(f".{path.name}.partial")
    torch.save(state, partial)
    os.replace(partial, path)


def state_of(thing: Any, name: str) -> Any:
    """What a checkpoint keeps of something.

    Raises:
        SpecError: It could not be put back.
    """
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return thing.state_dict()
    if isinstance(thing, torch.Generator):
        return thing.get_state()
    if isinstance(thing, dict | list):
        return thing
    raise SpecError(
        f"{name} is of {type(thing).__qualname__}, which cannot be put back when a run is resumed",
        "keep what has state_dict and load_state_dict, a torch.Generator, a dict or a list",
    )


def set_state(thing: Any, state: Any) -> None:
    """Make something as it was when it was asked for its state."""
    if isinstance(thing, torch.Generator):
        thing.set_state(state)
    elif isinstance(thing, dict):
        thing.clear()
        thing.update(state)
    elif isinstance(thing, list):
        thing[:] = state
    else:
        thing.load_state_dict(state)
