"""Picture of a sweep: values of all trials over their reports, and the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.observability.gantt import check_can_draw

_BEST, _OTHERS = "#0b6e99", "#b8c4cc"
_MOST_NAMED = 30


@dataclass(frozen=True)
class TrialCurve:
    """What a trial reported.

    Attributes:
        label: Its number and settings.
        values: Values of the metric, in order.
        state: State of the trial.
    """

    label: str
    values: Sequence[float]
    state: str


def draw_trials(curves: Sequence[TrialCurve], metric: str, path: Path, title: str = "") -> None:
    """Draw trials, best first, as PNG; the first 30 are named.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    check_can_draw()
    from matplotlib.figure import Figure

    named = curves[:_MOST_NAMED]
    height = 2.2 + 0.24 * len(named)
    figure = Figure(figsize=(10.0, max(3.6, height)), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1))
    for curve in reversed(curves):
        if curve.values:
            is_best = curve is curves[0]
            left.plot(
                range(1, len(curve.values) + 1),
                curve.values,
                color=_BEST if is_best else _OTHERS,
                linewidth=2.0 if is_best else 1.0,
                linestyle="-" if curve.state == "done" else ":",
                marker="o" if len(curve.values) == 1 else None,
                zorder=3 if is_best else 2,
            )
    left.xaxis.get_major_locator().set_params(integer=True)
    left.set_xlabel("report")
    left.set_ylabel(metric)
    for at, curve in enumerate(named):
        if curve.values:
            colour = _BEST if at == 0 else _OTHERS
            right.plot(curve.values[-1], at, "o" if curve.state == "done" else "x", color=colour)
    right.set_yticks(range(len(named)), [curve.label for curve in named], fontsize=8)
    right.set_ylim(len(named) - 0.5, -0.5)
    right.yaxis.tick_right()
    right.set_xlabel(metric)
    right.grid(axis="y", color="#eef1f4")
    for axes in (left, right):
        axes.spines[["top", "left" if axes is right else "right"]].set_visible(False)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, format="png", metadata={"Software": "headrace"})
