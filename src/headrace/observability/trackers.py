"""Tools that keep the figures of many runs side by side, behind one small interface."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from headrace.core.errors import MissingExtraError, SpecError

STEP_FIGURES = ("step", "iteration", "epoch")
"""Figures of a script that say how far it is; the first that is there counts."""


class Tracker(Protocol):
    """Keeps the figures of one run; may raise whatever its tool raises.

    Attributes:
        name: What people call the tool.
        where: How to see what it keeps.
    """

    name: str
    where: str

    def start(self, run: str, config: Mapping[str, Any], at_s: float) -> None:
        """A run begins, or goes on after a break.

        Args:
            run: Its id.
            config: What it was started with; plain values by name.
            at_s: When, in seconds since 1970.
        """
        ...

    def log(self, step: int, figures: Mapping[str, float], at_s: float) -> None:
        """The run has figures of one step."""
        ...

    def finish(self, state: str, at_s: float) -> None:
        """The run has ended: `done`, `failed` or `interrupted`."""
        ...


def make_tracker(wanted: str, folder: Path, experiment: str, server: str | None = None) -> Tracker:
    """The tracker that `--track` names.

    Args:
        wanted: `tensorboard`, `tensorboard:DIR`, `mlflow` or `mlflow:URI`.
        folder: Of the run: figures lie in it, or beside it in a file of all runs, if nobody says
            otherwise.
        experiment: What the run belongs to.
        server: Where MLflow keeps runs if `wanted` does not say.

    Raises:
        SpecError: There is no such tracker.
        MissingExtraError: Its package is not installed.
    """
    name, colon, place = wanted.partition(":")
    if name not in ("tensorboard", "mlflow") or (colon and not place):
        raise SpecError(
            f"{wanted!r} is no tracker",
            "give --track tensorboard, tensorboard:DIR, mlflow or mlflow:URI",
        )
    if find_spec(name) is None:
        raise MissingExtraError(
            f"--track {name} needs a package that is not installed",
            "pip install 'headrace[track]'",
        )
    if name == "tensorboard":
        from headrace.observability.tensorboard_tracker import TensorBoardTracker

        return TensorBoardTracker(Path(place) if place else None, folder)
    from headrace.observability.mlflow_tracker import MlflowTracker

    here = f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"
    return MlflowTracker(place or server or here, experiment)


def numbers_of(figures: Mapping[str, Any]) -> dict[str, float]:
    """Figures that can be drawn: finite numbers."""
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def step_of(figures: Mapping[str, Any], num_reports: int) -> int:
    """Which step figures belong to: what they say themselves, else the number of the report."""
    for name in STEP_FIGURES:
        value = figures.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return num_reports
