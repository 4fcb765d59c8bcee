"""Gantt charts of some iterations: HTML for notebooks, text for terminals."""

from __future__ import annotations

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.trace import Trace
from headrace.core.units import format_seconds
from headrace.observability.cells.frame import cell
from headrace.observability.report.gantt import NUM_COLOURS, Stretch, cut, gantt_panel
from headrace.observability.report.markup import Html, el
from headrace.observability.report.steady import steady_iterations
from headrace.observability.report.timelines import timelines_of
from headrace.observability.report.use import nic_series
from headrace.observability.rows import layout

MOST_SHOWN = 6
"""Traces with more iterations are not shown completely by default."""

_NUM_USUAL = 4
_SKIPPED = 0.2
_LEVELS = " ▁▂▃▄▅▆▇█"
_LABEL = 16


def stretch_of(trace: Trace, first: int | None = None, last: int | None = None) -> Stretch:
    """Choose iterations; by default all of a short trace, otherwise some typical ones."""
    ends_s = _ends_s(trace)
    num = len(ends_s)
    if not num:
        raise SpecError("the trace has no iteration", "run until a trainer has completed a step")
    if first is None and last is None:
        first, last = _usual(trace, num)
    elif first is None and last is not None:
        first = max(0, last - _NUM_USUAL + 1)
    elif first is not None and last is None:
        last = min(num - 1, first + _NUM_USUAL - 1)
    assert first is not None
    assert last is not None
    if not 0 <= first <= last < num:
        raise SpecError(
            f"the trace has no iterations {first} to {last}", f"choose from 0 to {num - 1}"
        )
    begin_s = float(ends_s[first - 1]) if first else 0.0
    return Stretch(trace, first, last, begin_s, float(ends_s[last]))


def gantt_cell(stretch: Stretch) -> Html:
    """Create a Gantt chart with the width of the notebook."""
    done_s = stretch.end_s - stretch.begin_s
    title = _title(stretch)
    colours = [
        el("span", el("i", class_=f"c{n % NUM_COLOURS}"), str(n))
        for n in _seen(stretch)[:NUM_COLOURS]
    ]
    lead = (
        "Colours and numbers denote iterations; grey areas show NIC utilisation; the dashed line "
        "marks the end of the last iteration."
    )
    panel = gantt_panel(stretch, 1.04 * done_s, "", f"{title}. {lead}")
    return cell(
        title,
        lead,
        el("div", el("span", "iteration"), *colours, class_="legend"),
        el("div", panel, class_="scroll tall"),
    )


def text_gantt(stretch: Stretch, width: int = 100) -> str:
    """Render `width` characters per line: iterations as last digits, NIC use as blocks."""
    num = max(20, width - _LABEL)
    done_s = stretch.end_s - stretch.begin_s
    drawn = layout(cut(stretch.trace, stretch.begin_s, stretch.end_s))
    series = nic_series(stretch.trace, stretch.begin_s, stretch.end_s, num)
    lines = [f"{_title(stretch)} (digits: iterations, blocks: network use)"]
    for machine, top, bottom in drawn.bands:
        lines.append(stretch.trace.machine_names[machine])
        lines.append(_line("in", _levels(series.into[:, machine])))
        for row in drawn.rows:
            if top <= row.top < bottom and not row.is_flow:
                letters = [" "] * num
                bars = row.bars
                for start_s, end_s, n in zip(
                    bars.start_s.tolist(), bars.end_s.tolist(), bars.iteration.tolist(), strict=True
                ):
                    left = min(int(num * start_s / done_s), num - 1)
                    right = max(left + 1, min(round(num * end_s / done_s), num))
                    letters[left:right] = [str(n % 10)] * (right - left)
                lines.append(_line(row.label, "".join(letters)))
        lines.append(_line("out", _levels(series.out_of[:, machine])))
    if drawn.num_hidden:
        lines.append(f"... and {drawn.num_hidden} machines with less busy NICs")
    lines.append(_line("", "0" + format_seconds(float(f"{done_s:.3g}")).rjust(num - 1)))
    return "\n".join(line.rstrip() for line in lines)


def _title(stretch: Stretch) -> str:
    done_s = float(f"{stretch.end_s - stretch.begin_s:.3g}")
    which = f"Iteration {stretch.first}"
    if stretch.num > 1:
        which = f"Iterations {stretch.first} to {stretch.last}"
    return f"{which} in {format_seconds(done_s)}"


def _seen(stretch: Stretch) -> list[int]:
    """Iterations with visible executions: stores and samplers run ahead of trainers."""
    shown = cut(stretch.trace, stretch.begin_s, stretch.end_s).executions.iteration
    found: list[int] = np.unique(shown[shown >= stretch.first]).tolist()
    return found


def _line(label: str, letters: str) -> str:
    return f"{label[: _LABEL - 4]:>{_LABEL - 3}} |{letters}"


def _levels(shares: np.ndarray) -> str:
    levels = np.ceil(np.clip(shares, 0, 1) * (len(_LEVELS) - 1) - 1e-9).astype(int)
    return "".join(_LEVELS[level] for level in levels)


def _ends_s(trace: Trace) -> np.ndarray:
    """End of each iteration over all trainers, or over all tasks if no trainer was recorded."""
    ends_s = timelines_of(trace).ends_s
    whole = np.flatnonzero(np.isnan(ends_s))
    ends_s = ends_s[: whole[0]] if len(whole) else ends_s
    if len(ends_s):
        return ends_s
    rows = trace.executions
    found = np.zeros(int(rows.iteration.max(initial=-1)) + 1)
    np.maximum.at(found, rows.iteration, rows.end_s)
    latest: np.ndarray = np.maximum.accumulate(found)
    return latest


def _usual(trace: Trace, num: int) -> tuple[int, int]:
    if num <= MOST_SHOWN:
        return 0, num - 1
    found = steady_iterations(trace, int(_SKIPPED * num)).stretch(_NUM_USUAL)
    first, last = found or (num - _NUM_USUAL, num - 1)
    return first, min(last, num - 1)
