"""Gantt chart of a trace as PNG: tasks and flows per machine, as in DGTP's Fig. 4(b)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.core.errors import MissingExtraError
from headrace.core.trace import Trace
from headrace.core.units import format_bytes_per_s, format_seconds
from headrace.observability.rows import Bars, Row, coarsen, layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.path import Path as MatplotlibPath

COLOURS = (
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#b279a2",
    "#e45756",
    "#39a7a4",
    "#d9a514",
    "#9d755d",
    "#e377a2",
    "#79706e",
)
"""Colours of iterations, repeated; neighbours also differ in greyscale."""

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_WIDTH_INCHES = 13.0
_INCHES_PER_UNIT = 0.165
_MAX_INCHES = 60.0
_DOTS_PER_INCH = 130
_AXES_SHARE = 0.85
"""Fraction of the picture's width; labels take the rest."""

_MAX_EXACT_BARS = 2000
"""Rows with more bars are reduced to pixel resolution."""

_FLOW_OPACITY = 0.55


@dataclass(frozen=True)
class _Scale:
    """Time unit of the axis."""

    unit_s: float
    name: str


def check_can_draw() -> None:
    """Raise `MissingExtraError` if matplotlib is missing, before starting long work."""
    try:
        import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise MissingExtraError(
            "charts need matplotlib, which is not installed",
            "pip install 'headrace[report]'",
        ) from error


def draw_gantt(trace: Trace, path: Path, title: str = "") -> None:
    """Draw a trace as PNG: a band per machine with its tasks and flows, coloured by iteration.

    Many tasks are grouped by role. Of many machines, those with the busiest NICs are shown, and the
    title states it. Raises `MissingExtraError` if matplotlib is not installed.
    """
    check_can_draw()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as NewFigure

    drawn = layout(trace)
    height = min(_MAX_INCHES, 1.3 + _INCHES_PER_UNIT * drawn.height)
    figure = NewFigure(figsize=(_WIDTH_INCHES, height), dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    scale = _scale_of(trace.makespan_s)
    axes.set_xlim(0.0, max(trace.makespan_s, 1e-9) / scale.unit_s)
    axes.set_ylim(drawn.height, 0.0)
    _draw_bands(axes, trace, drawn.bands)
    for row in drawn.rows:
        _draw_row(axes, row, scale)
    _write_iterations(axes, drawn.rows, scale)
    _dress(axes, drawn.rows, scale)
    _write_title(axes, trace, title, drawn.num_hidden)
    _draw_legend(figure, trace)
    # Without a version, so that equal charts have equal bytes.
    figure.savefig(path, format="png", metadata={"Software": "headrace"})


def _scale_of(makespan_s: float) -> _Scale:
    for unit_s, name in _UNITS:
        if makespan_s >= 2 * unit_s:
            return _Scale(unit_s, name)
    return _Scale(*_UNITS[-1])


def _draw_bands(axes: Axes, trace: Trace, bands: list[tuple[int, float, float]]) -> None:
    for number, (machine, top, bottom) in enumerate(bands):
        axes.axhspan(top, bottom, color="#f3f5f8" if number % 2 == 0 else "#ffffff", zorder=0)
        if number:
            axes.axhline(top, color="#9aa3ad", linewidth=0.8, zorder=1)
        into, out_of = trace.nic_in_bytes_per_s[machine], trace.nic_out_bytes_per_s[machine]
        speed = format_bytes_per_s(into)
        if into != out_of:
            speed = f"{speed} in\n{format_bytes_per_s(out_of)} out"
        axes.annotate(
            f"{trace.machine_names[machine]}\n{speed}",
            xy=(0, (top + bottom) / 2),
            xycoords=("axes fraction", "data"),
            xytext=(-78, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=9,
            fontweight="bold",
            color="#2b2f36",
            linespacing=1.4,
        )


def _draw_row(axes: Axes, row: Row, scale: _Scale) -> None:
    from matplotlib.patches import PathPatch

    pixel = axes.get_xlim()[1] / (_AXES_SHARE * _WIDTH_INCHES * _DOTS_PER_INCH)
    if len(row.bars.lane) > _MAX_EXACT_BARS:
        height = row.height * _INCHES_PER_UNIT * _DOTS_PER_INCH
        row = coarsen(row, pixel * scale.unit_s, max_lanes=max(1, int(height)))
    bars = row.bars
    # Bars are at least one pixel wide; narrow bars have no frame, which would cover them.
    left, right = bars.start_s / scale.unit_s, bars.end_s / scale.unit_s
    right = np.maximum(right, left + pixel)
    lane_height = row.height / row.num_lanes
    # Leave a gap between lanes unless they are too narrow.
    lane_pixels = lane_height * _INCHES_PER_UNIT * _DOTS_PER_INCH
    gap = min(0.12, 0.1 * lane_height) if lane_pixels >= 3 else 0.0
    top = row.top + bars.lane * lane_height + gap
    bottom = row.top + (bars.lane + 1) * lane_height - gap
    framed = (right - left > 6 * pixel) & (lane_pixels >= 4)
    colours = bars.iteration % len(COLOURS)
    # One path for all bars of equal style: a million single patches take a minute.
    for colour, frame in sorted(set(zip(colours.tolist(), framed.tolist(), strict=True))):
        alike = (colours == colour) & (framed == frame)
        axes.add_artist(
            PathPatch(
                _rectangles(left[alike], right[alike], top[alike], bottom[alike]),
                facecolor=COLOURS[colour],
                alpha=_FLOW_OPACITY if row.is_flow else 1.0,
                edgecolor="white",
                linewidth=0.3 if frame else 0.0,
                zorder=2,
            )
        )


def _rectangles(
    left: np.ndarray, right: np.ndarray, top: np.ndarray, bottom: np.ndarray
) -> MatplotlibPath:
    from matplotlib.path import Path as NewPath

    corners = np.stack([left, top, right, top, right, bottom, left, bottom, left, top], axis=1)
    around = [NewPath.MOVETO, *[NewPath.LINETO] * 3, NewPath.CLOSEPOLY]
    return NewPath(corners.reshape(-1, 2), np.tile(np.array(around), len(left)))


def _write_iterations(axes: Axes, rows: list[Row], scale: _Scale) -> None:
    """Write the iteration into bars of tasks that are wide enough."""
    per_point = axes.get_xlim()[1] / (_AXES_SHARE * _WIDTH_INCHES * 72)
    for row in rows:
        if row.is_flow or row.num_lanes > 1:
            continue
        bars: Bars = row.bars
        for start_s, end_s, iteration in zip(
            bars.start_s.tolist(), bars.end_s.tolist(), bars.iteration.tolist(), strict=True
        ):
            text = str(iteration)
            if (end_s - start_s) / scale.unit_s < per_point * (5.0 * len(text) + 3):
                continue
            axes.text(
                (start_s + end_s) / 2 / scale.unit_s,
                row.top + row.height / 2,
                text,
                ha="center",
                va="center_baseline",
                fontsize=7,
                color="white",
                fontweight="bold",
                zorder=3,
            )


def _dress(axes: Axes, rows: list[Row], scale: _Scale) -> None:
    axes.set_yticks([row.top + row.height / 2 for row in rows], [row.label for row in rows])
    axes.tick_params(axis="y", length=0, labelsize=7.5, colors="#3d434b")
    axes.tick_params(axis="x", labelsize=9, colors="#3d434b")
    axes.set_xlabel(f"time ({scale.name})", fontsize=10, color="#2b2f36")
    axes.grid(axis="x", color="#d4d9df", linewidth=0.6, zorder=1)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _write_title(axes: Axes, trace: Trace, title: str, num_hidden: int) -> None:
    parts = [title] if title else []
    parts.append(f"makespan {format_seconds(trace.makespan_s)}")
    if num_hidden:
        num = len(trace.machine_names)
        parts.append(f"the {num - num_hidden} busiest NICs of {num:,} machines")
    axes.set_title(" · ".join(parts), loc="left", fontsize=11, color="#2b2f36", pad=10)


def _draw_legend(figure: Figure, trace: Trace) -> None:
    from matplotlib.patches import Patch

    num = int(trace.executions.iteration.max(initial=-1)) + 1
    handles = [
        Patch(facecolor=COLOURS[n], label=f"iteration {n}") for n in range(min(num, len(COLOURS)))
    ]
    if num > len(COLOURS):
        handles = [Patch(facecolor=c, label=f"{n}") for n, c in enumerate(COLOURS)]
        handles.append(Patch(facecolor="none", label="iteration, by its last digit"))
    handles.append(Patch(facecolor="#8a929c", label="task"))
    handles.append(Patch(facecolor="#8a929c", alpha=_FLOW_OPACITY, label="flow"))
    figure.legend(
        handles=handles,
        loc="outside lower right",
        ncols=len(handles),
        frameon=False,
        fontsize=8,
        handlelength=1.1,
        handletextpad=0.4,
        columnspacing=1.2,
    )
