"""Tables of the trials of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from headrace.cli import console as terminal
from headrace.jobs.sweep import Trial


def show_trials(trials: Sequence[Trial], metric: str) -> None:
    """Print trials, best first."""
    table = Table(box=None, pad_edge=False)
    names = list(dict.fromkeys(name for trial in trials for name in trial.settings))
    for name in ("trial", *names, metric or "value", "state", "seconds"):
        is_number = name in ("trial", "seconds", metric or "value")
        table.add_column(name, justify="right" if is_number else "left")
    for trial in trials:
        value = trial.value(metric)
        table.add_row(
            str(trial.number),
            *(short(trial.settings.get(name, "")) for name in names),
            "-" if value is None else f"{value:.5g}",
            f"{trial.state}" + (f": {trial.problem}" if trial.problem else ""),
            "-" if trial.wall_s is None else f"{trial.wall_s:.1f}",
        )
    terminal.console().print(table)


def row_of(trial: Trial, metric: str) -> dict[str, Any]:
    """A trial as plain values."""
    return {
        "number": trial.number,
        "settings": dict(trial.settings),
        "state": str(trial.state),
        "value": trial.value(metric),
        "figures": dict(trial.figures or {}),
        "attempts": trial.attempts,
        "memory_bytes": trial.load.memory_bytes or None,
        "seconds": trial.wall_s,
        "problem": trial.problem,
    }


def short(value: object) -> str:
    """A setting or figure, with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
