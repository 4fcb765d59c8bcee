"""Gantt chart (SVG) of some iterations; it scales with the page, its text does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from headrace.core.trace import Executions, Flows, Trace
from headrace.core.units import format_seconds
from headrace.observability.lanes import flow_ends
from headrace.observability.report.charts import area_path, ticks
from headrace.observability.report.markup import Html, el, join, text
from headrace.observability.report.use import nic_series
from headrace.observability.rows import Layout, Row, coarsen, layout

NUM_COLOURS = 6
"""Number of iteration colours, repeated."""

MOST_BARS = 1500
"""Maximum bars of a chart; more are reduced to screen resolution."""

_UNIT_PX = 15.0
_STRIP_PX = 18.0
_GAP_PX = 4.0
_HEAD_PX = 4.0
_NAMES_PX = 114
_NUM_INTERVALS = 240
_FOOT_PX = 22.0
_NARROWEST = 0.0015
"""Minimum width of a bar, as a fraction of the chart's width."""


@dataclass(frozen=True)
class Stretch:
    """Iterations `first` to `last`; `begin_s` is the end of the iteration before the first."""

    trace: Trace
    first: int
    last: int
    begin_s: float
    end_s: float

    @property
    def num(self) -> int:
        """Number of iterations."""
        return self.last - self.first + 1


def cut(trace: Trace, begin_s: float, end_s: float) -> Trace:
    """Cut a trace to an interval, with times relative to its start."""
    rows, flows = trace.executions, trace.flows
    run = np.flatnonzero((rows.end_s > begin_s) & (rows.start_s < end_s))
    flow_end = flow_ends(trace)
    sent = np.flatnonzero((flow_end > begin_s) & (flows.start_s < end_s))

    def within(times: np.ndarray) -> np.ndarray:
        clipped: np.ndarray = np.clip(times, begin_s, end_s) - begin_s
        return clipped

    return replace(
        trace,
        executions=Executions(
            rows.task[run], rows.iteration[run], within(rows.start_s[run]), within(rows.end_s[run])
        ),
        flows=Flows(
            flows.src[sent],
            flows.dst[sent],
            flows.iteration[sent],
            flows.num_bytes[sent],
            within(flows.start_s[sent]),
            within(flow_end[sent]),
        ),
        nic_use=None,
        local=None,
        marks=(),
    )


@dataclass(frozen=True)
class _Band:
    """A machine: ingress, its tasks, egress, from top to bottom in pixels."""

    machine: int
    top: float
    rows: list[Row]
    bottom: float


def gantt_panel(stretch: Stretch, span_s: float, title: str, label: str) -> Html:
    """Create a chart of `span_s` seconds whose row names stay visible when it is scrolled."""
    done_s = stretch.end_s - stretch.begin_s
    # Omit most of what follows the iterations.
    shown_s = min(done_s + 0.02 * span_s, span_s)
    trace = cut(stretch.trace, stretch.begin_s, stretch.begin_s + shown_s)
    bands, num_hidden = _bands(trace, span_s)
    height = bands[-1].bottom + _FOOT_PX
    names = el(
        "svg",
        *(_names(trace, band, n) for n, band in enumerate(bands)),
        width=_NAMES_PX,
        height=_px(height),
        class_="names",
        aria_hidden="true",
    )
    series = nic_series(stretch.trace, stretch.begin_s, stretch.begin_s + shown_s, _NUM_INTERVALS)
    share = shown_s / span_s
    chart = el(
        "svg",
        *(_back(band, n) for n, band in enumerate(bands)),
        *_time_axis(span_s, height),
        *(_strip(series.into[:, band.machine], band.top, share) for band in bands),
        *(_strip(series.out_of[:, band.machine], band.bottom - _STRIP_PX, share) for band in bands),
        *(_bar_row(row, span_s) for band in bands for row in band.rows),
        _done_line(done_s, span_s, height),
        width="100%",
        height=_px(height),
        role="img",
        aria_label=label,
        class_="bars",
    )
    hidden = None
    if num_hidden:
        hidden = el("small", f" ({num_hidden} machines with less busy NICs are hidden)")
    heading = el("h3", title, hidden) if title or hidden else None
    return join(heading, el("div", names, chart, class_="panel"))


def _bands(trace: Trace, span_s: float) -> tuple[list[_Band], int]:
    """Rows of tasks by machine, in pixels, and the number of hidden machines."""
    drawn = _few_enough(layout(trace), span_s)
    bands, y = [], _HEAD_PX
    for machine, top, bottom in drawn.bands:
        start, rows = y, []
        y += _STRIP_PX + _GAP_PX
        for row in drawn.rows:
            if top <= row.top < bottom and not row.is_flow:
                rows.append(replace(row, top=y, height=_UNIT_PX * row.height))
                y += _UNIT_PX * row.height
        y += _STRIP_PX + _GAP_PX
        bands.append(_Band(machine, start, rows, y))
        y += 2 * _GAP_PX
    return bands, drawn.num_hidden


def _few_enough(drawn: Layout, span_s: float) -> Layout:
    rows = [row for row in drawn.rows if not row.is_flow]
    num, step = sum(len(row.bars.lane) for row in rows), 1 / 4000
    while num > MOST_BARS and step < 0.05:
        rows = [coarsen(row, span_s * step, max_lanes=max(1, int(row.height * 4))) for row in rows]
        num, step = sum(len(row.bars.lane) for row in rows), 2 * step
    return replace(drawn, rows=rows)


def _back(band: _Band, number: int) -> Html | None:
    if number % 2:
        return None
    y, height = _px(band.top - _GAP_PX / 2), _px(band.bottom - band.top + _GAP_PX)
    return el("rect", x=0, y=y, width="100%", height=height, class_="band")


def _names(trace: Trace, band: _Band, number: int) -> Html:
    name = trace.machine_names[band.machine]
    shown = name if len(name) <= 8 else f"{name[:7]}…"
    labels = [
        ("in", band.top + _STRIP_PX - 3),
        *((row.label, row.top + row.height / 2 + 4) for row in band.rows),
        ("out", band.bottom - 3),
    ]
    return el(
        "g",
        _back(band, number),
        el("text", el("title", name), shown, x=6, y=_px(band.top + 14), class_="machine"),
        *(
            el("text", label, x=_NAMES_PX - 8, y=_px(y), class_="row", text_anchor="end")
            for label, y in labels
        ),
    )


def _strip(shares: np.ndarray, top: float, share: float) -> Html:
    """Draw the utilisation of a NIC."""
    path = area_path(np.linspace(0, 1000, len(shares) + 1), 100 - 100 * np.minimum(shares, 1), 100)
    return el(
        "svg",
        el("rect", x=0, y=0, width=1000, height=100, class_="room"),
        el("path", d=path, class_="load"),
        x=0,
        y=_px(top),
        width=f"{100 * share:.2f}%",
        height=_px(_STRIP_PX),
        viewBox="0 0 1000 100",
        preserveAspectRatio="none",
    )


def _bar_row(row: Row, span_s: float) -> Html:
    lane_px = row.height / row.num_lanes
    gap = 1.0 if lane_px >= 5 else 0.0
    bars, made = row.bars, []
    for start_s, end_s, n, lane in zip(
        bars.start_s.tolist(),
        bars.end_s.tolist(),
        bars.iteration.tolist(),
        bars.lane.tolist(),
        strict=True,
    ):
        left, width = start_s / span_s, max((end_s - start_s) / span_s, _NARROWEST)
        y, high = row.top + lane * lane_px + gap, max(lane_px - 2 * gap, 1.0)
        words = text(f"{row.label}, iteration {n}: {format_seconds(end_s - start_s)}")
        kind = f"c{n % NUM_COLOURS}"
        made.append(
            f'<rect x="{100 * left:.2f}%" y="{_px(y)}" width="{100 * width:.2f}%" '
            f'height="{_px(high)}" class="{kind}" data-i="{n}"><title>{words}</title></rect>'
        )
        if high >= 10 and width >= 0.012 + 0.007 * len(str(n)):
            made.append(
                f'<text x="{100 * (left + width / 2):.2f}%" y="{_px(y + high / 2 + 3.5)}" '
                f'class="num c{n % NUM_COLOURS}">{n}</text>'
            )
    return el("g", Html("".join(made)))


def _time_axis(span_s: float, height: float) -> list[Html]:
    unit_s, unit = (1.0, "s") if span_s >= 2 else (1e-3, "ms") if span_s >= 2e-3 else (1e-6, "µs")
    found = []
    for tick in ticks(0.0, span_s / unit_s, 8):
        at = f"{100 * tick * unit_s / span_s:.2f}%"
        found.append(el("line", x1=at, x2=at, y1=0, y2=_px(height - _FOOT_PX + 4), class_="grid"))
        if tick * unit_s < 0.97 * span_s:
            words = f"{tick:g} {unit}"
            anchor = "start" if tick == 0 else "middle"
            found.append(
                el("text", words, x=at, y=_px(height - 6), class_="tick", text_anchor=anchor)
            )
    return found


def _done_line(done_s: float, span_s: float, height: float) -> Html:
    at = f"{min(100 * done_s / span_s, 99.9):.2f}%"
    return el("line", x1=at, x2=at, y1=0, y2=_px(height - _FOOT_PX + 4), class_="done")


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
