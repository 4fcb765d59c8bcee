"""Interface of experiment trackers, and their selection."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from headrace.core.errors import MissingExtraError, SpecError

STEP_FIGURES = ("step", "iteration", "epoch")
"""Metrics that give the step; the first that is present is used."""


class Tracker(Protocol):
    """Logs the metrics of one run; `where` states how to view them. May raise anything."""

    name: str
    where: str

    def start(self, run: str, config: Mapping[str, Any], at_s: float) -> None:
        """Start or resume a run; `at_s` is in seconds since 1970."""
        ...

    def log(self, step: int, figures: Mapping[str, float], at_s: float) -> None:
        """Log metrics of one step."""
        ...

    def finish(self, state: str, at_s: float) -> None:
        """End the run: `done`, `failed` or `interrupted`."""
        ...


def make_tracker(wanted: str, folder: Path, experiment: str, server: str | None = None) -> Tracker:
    """Create the tracker given by `--track`: `tensorboard[:DIR]` or `mlflow[:URI]`."""
    name, colon, place = wanted.partition(":")
    if name not in ("tensorboard", "mlflow") or (colon and not place):
        raise SpecError(
            f"unknown tracker {wanted!r}",
            "use --track tensorboard, tensorboard:DIR, mlflow or mlflow:URI",
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
    """Select finite numbers."""
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def step_of(figures: Mapping[str, Any], num_reports: int) -> int:
    """Step of a report: from its metrics, otherwise the number of the report."""
    for name in STEP_FIGURES:
        value = figures.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return num_reports
