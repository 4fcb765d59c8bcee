"""Keep the best model of a training, and get and set the state of objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from headrace.core.errors import SpecError
from headrace.linux.atomic_write import atomic_path
from headrace.training.checkpoint_files import write_state

FILE_NAME = "best.pt"


class BestKeeper:
    """Keeps the best model.

    Args:
        folder: Directory of the file; None if another trainer writes it.

    Attributes:
        best: Best score; None before the first.
        num_worse: Number of scores since the best.
    """

    def __init__(self, folder: Path | None) -> None:
        self.best: float | None = None
        self.num_worse = 0
        self._folder = folder
        self._model: dict[str, Any] | None = None

    @property
    def path(self) -> Path | None:
        """The file: a `state_dict` written by `torch.save`."""
        return None if self._folder is None else self._folder / FILE_NAME

    def show(self, score: float, state: Callable[[], dict[str, Any]], patience: int) -> bool:
        """Keep a model if it is the best.

        Args:
            score: Score; higher is better, NaN is never better.
            state: Returns the `state_dict`; called only if it is saved.
            patience: Number of scores without improvement before stopping.

        Returns:
            Whether to stop.
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
        """State for a checkpoint, with the best model, whose file may be lost with a machine."""
        return {"best": self.best, "num_worse": self.num_worse, "model": self._model}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state; the file is written again."""
        self.best, self.num_worse = state["best"], state["num_worse"]
        if self._folder is not None and state["model"] is not None:
            self._model = state["model"]
            _save(self._model, self._folder / FILE_NAME)


def _save(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as partial:
        write_state(partial, state)


def state_of(thing: Any, name: str) -> Any:
    """State of an object for a checkpoint; raises `SpecError` if it cannot be restored."""
    if hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
        return thing.state_dict()
    if isinstance(thing, torch.Generator):
        return thing.get_state()
    if isinstance(thing, dict | list):
        return thing
    raise SpecError(
        f"{name} of type {type(thing).__qualname__} cannot be restored when a run is resumed",
        "use an object with state_dict and load_state_dict, a torch.Generator, a dict or a list",
    )


def set_state(thing: Any, state: Any) -> None:
    """Restore the state of an object."""
    if isinstance(thing, torch.Generator):
        thing.set_state(state)
    elif isinstance(thing, dict):
        thing.clear()
        thing.update(state)
    elif isinstance(thing, list):
        thing[:] = state
    else:
        thing.load_state_dict(state)
