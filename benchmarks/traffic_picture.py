"""Draw the accuracy over the bytes between machines, from the result file of `traffic.py`.

python benchmarks/traffic_picture.py benchmarks/results/traffic.json docs/images/traffic.svg
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, PAD, COLUMNS, LEGEND = 300, 190, 44, 3, 40
LEAST_BYTES = 1e-3
COLOURS = {
    "plain": "#555",
    "exact": "#1b7837",
    "safe": "#2166ac",
    "least": "#b2182b",
    "labor": "#01665e",
    "dgs": "#e08214",
    "dgs_shuffled": "#8073ac",
}
LABELS = {"dgs": "explained scores", "dgs_shuffled": "shuffled scores"}


def main() -> int:
    """Write the picture."""
    graphs = json.loads(Path(sys.argv[1]).read_text())["graphs"]
    rows = math.ceil(len(graphs) / COLUMNS)
    panels = [
        f'<g transform="translate({WIDTH * (i % COLUMNS)},{HEIGHT * (i // COLUMNS) + LEGEND})">'
        f"{panel(name.replace('_', ' '), found)}</g>"
        for i, (name, found) in enumerate(graphs.items())
    ]
    style = "font-family:sans-serif;font-size:11px;background:#fff"
    Path(sys.argv[2]).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * COLUMNS}" '
        f'height="{HEIGHT * rows + LEGEND}" '
        f'viewBox="0 0 {WIDTH * COLUMNS} {HEIGHT * rows + LEGEND}" '
        f'style="{style}"><rect width="100%" height="100%" fill="#fff"/>'
        f"{legend()}{''.join(panels)}</svg>\n",
        encoding="utf-8",
    )
    return 0


def legend() -> str:
    """What the colours and the axes mean."""
    marks = []
    for number, (choice, colour) in enumerate(COLOURS.items()):
        at = 14 + number * 110
        marks.append(f'<circle cx="{at}" cy="12" r="4" fill="{colour}"/>')
        marks.append(f'<text x="{at + 8}" y="16">{LABELS.get(choice, choice)}</text>')
    marks.append(
        f'<circle cx="{14 + len(COLOURS) * 110}" cy="12" r="4" fill="#fff" stroke="#555"/>'
    )
    marks.append(f'<text x="{22 + len(COLOURS) * 110}" y="16">with its cache</text>')
    text = (
        "Points of accuracy above plain over bytes relative to plain; bars are 2 standard errors."
    )
    marks.append(f'<text x="10" y="34" fill="#555">{text}</text>')
    return "".join(marks)


def panel(name: str, found: dict[str, Any]) -> str:
    """One graph: a point for each choice, with and without its cache."""
    points = [
        (choice, each[where], each.get("points") or 0.0, each.get("standard_error") or 0.0, where)
        for choice, each in found.items()
        for where in ("bytes", "cached")
        if where in each
    ]
    most: float = max([0.5, *(abs(gain) + 2 * error for _, _, gain, error, _ in points)])

    def x(share: float) -> float:
        part = 1 - math.log10(max(share, LEAST_BYTES)) / math.log10(LEAST_BYTES)
        return PAD + (WIDTH - 2 * PAD) * part

    def y(gain: float) -> float:
        return HEIGHT / 2 - gain / most * (HEIGHT / 2 - 36)

    lines = [
        f'<text x="{WIDTH / 2}" y="14" text-anchor="middle" font-weight="bold">{name}</text>',
        f'<line x1="{PAD}" x2="{WIDTH - PAD}" y1="{y(0)}" y2="{y(0)}" stroke="#bbb"/>',
        f'<text x="4" y="{y(most) + 4}">+{most:.1f}</text>',
        f'<text x="4" y="{y(0) + 4}">points</text>',
        f'<text x="4" y="{y(-most) + 4}">-{most:.1f}</text>',
    ]
    for share in (1e-3, 1e-2, 1e-1, 1.0):
        at = x(share)
        lines.append(f'<line x1="{at}" x2="{at}" y1="24" y2="{HEIGHT - 24}" stroke="#eee"/>')
        lines.append(f'<text x="{at}" y="{HEIGHT - 8}" text-anchor="middle">{share:g}</text>')
    for choice, share, gain, error, where in points:
        colour, at = COLOURS[choice], x(share)
        fill = colour if where == "bytes" else "#fff"
        low, high = y(gain - 2 * error), y(gain + 2 * error)
        lines.append(f'<line x1="{at}" x2="{at}" y1="{low}" y2="{high}" stroke="{colour}"/>')
        lines.append(f'<circle cx="{at}" cy="{y(gain)}" r="4" fill="{fill}" stroke="{colour}"/>')
    return "".join(lines)


if __name__ == "__main__":
    sys.exit(main())
