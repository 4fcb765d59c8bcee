"""Small SVG charts that scale with the page; their text does not scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from headrace.observability.report.markup import Html, el, join

_WIDTH, _HEIGHT = 1000.0, 100.0


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between `low` and `high`."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [low]
    raw = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first
    return [round((first + i) * step, 12) for i in range(count + 1)]


def line_chart(at: Sequence[float], values: Sequence[float], label: str, axis: str) -> Html:
    """Create a line chart; `at` may be in any order, `label` is the accessible description."""
    low, high = min(values), max(values)
    if high - low < 1e-12 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    pad = 0.06 * (high - low)
    low, high = low - pad, high + pad
    first, last = min(at), max(at)
    span = (last - first) or 1.0
    points = [
        (_WIDTH * (x - first) / span if last > first else _WIDTH / 2, _up(y, low, high))
        for x, y in zip(at, values, strict=True)
    ]
    marks = ticks(low, high, 4)
    grid = [
        el(
            "line",
            x1=0,
            x2=_WIDTH,
            y1=_n(_up(y, low, high)),
            y2=_n(_up(y, low, high)),
            class_="grid",
        )
        for y in marks
    ]
    line = el("polyline", points=" ".join(f"{_n(x)},{_n(y)}" for x, y in points), class_="line")
    # Scaling would distort circles, so dots are zero-length lines with round caps.
    dots = ""
    if len(points) <= 40:
        dots = "".join(f"M{_n(x)} {_n(y)}h0" for x, y in points)
    picture = _picture(join(*grid, line, el("path", d=dots, class_="dots")), label)
    scale = [
        el("span", _short(y), style=f"top:{_n(_up(y, low, high) / _HEIGHT * 100)}%") for y in marks
    ]
    below = [
        el("span", _short(x), style=f"left:{_n((x - first) / span * 100)}%")
        for x in (ticks(first, last, 5) if last > first else [first])
    ]
    return el(
        "div",
        el("div", *scale, class_="scale", aria_hidden="true"),
        el("div", picture, class_="plot"),
        el("div", *below, class_="below", aria_hidden="true"),
        el("div", axis, class_="axis"),
        class_="chart",
    )


def mirror_chart(
    edges_s: np.ndarray, above: np.ndarray, below: np.ndarray, marks_s: Sequence[float], label: str
) -> Html:
    """Create a chart of utilisation over time: `above` upwards, `below` downwards."""
    begin_s, span_s = float(edges_s[0]), float(edges_s[-1] - edges_s[0])
    x = _WIDTH * (edges_s - begin_s) / span_s
    middle = _HEIGHT / 2
    parts = [
        el(
            "path",
            d=area_path(x, middle - middle / 1.08 * np.minimum(above, 1.08), middle),
            class_="in",
        ),
        el(
            "path",
            d=area_path(x, middle + middle / 1.08 * np.minimum(below, 1.08), middle),
            class_="out",
        ),
        el("line", x1=0, x2=_WIDTH, y1=_n(middle), y2=_n(middle), class_="zero"),
        *(
            el(
                "line",
                x1=0,
                x2=_WIDTH,
                y1=_n(middle + way * middle / 1.08),
                class_="full",
                y2=_n(middle + way * middle / 1.08),
            )
            for way in (-1, 1)
        ),
        *(
            el("line", x1=_n(at), x2=_n(at), y1=0, y2=_HEIGHT, class_="mark")
            for mark_s in marks_s
            if 0 <= (at := _WIDTH * (mark_s - begin_s) / span_s) <= _WIDTH
        ),
    ]
    return el("div", _picture(join(*parts), label), class_="plot nic")


def stacked_bar(parts: Sequence[tuple[str, str, float]], whole: float, label: str) -> Html:
    """Create a stacked bar from the class, description and size of each segment."""
    pieces = [
        el("i", class_=kind, style=f"width:{_n(100 * size / whole)}%", title=words)
        for kind, words, size in parts
        if size > 0
    ]
    return el("div", *pieces, class_="bar", role="img", aria_label=label)


def meter(share: float | None, kind: str = "") -> Html:
    """Create a small bar with its percentage; `-` for None."""
    if share is None:
        return el("span", "-", class_="faint")
    width = _n(100 * min(share, 1.0))
    bar = el("i", style=f"width:{width}%", class_=kind or None)
    return el("span", el("b", bar, aria_hidden="true"), f"{100 * share:.0f} %", class_="meter")


def _picture(content: Html, label: str) -> Html:
    return el(
        "svg",
        content,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        preserveAspectRatio="none",
        role="img",
        aria_label=label,
    )


def area_path(x: np.ndarray, y: np.ndarray, base: float) -> str:
    """SVG path of steps from `x[i]` to `x[i + 1]` at height `y[i]`, closed at a base line."""
    path = [f"M{_n(float(x[0]))} {_n(base)}"]
    last = None
    for (_, right), height in zip(pairwise(x.tolist()), y.tolist(), strict=True):
        written = _n(height)
        if written != last:
            path.append(f"V{written}")
        path.append(f"H{_n(right)}")
        last = written
    return "".join(path) + f"V{_n(base)}Z"


def _up(value: float, low: float, high: float) -> float:
    return _HEIGHT * (1 - (value - low) / (high - low))


def _n(value: float) -> str:
    written = f"{value:.1f}"
    return written.removesuffix(".0")


def _short(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value:,.0f}" if abs(value) < 1e6 else f"{value:.2g}"
    return f"{value:.4g}"
