"""The best model so far, in a file, and when to stop looking for a better one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

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
                _save(state(), self._folder / FILE_NAME)
        else:
            self.num_worse += 1
        return self.num_worse >= patience


def _save(state: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whoever reads it, or ends this process now, finds the old one or the new one.
    partial = path.with_name(f".{path.name}.partial")
    torch.save(state, partial)
    os.replace(partial, path)
