"""Chart of a partitioned graph: size of each graph partition relative to its target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_MEASURES = (
    ("nodes", "#4c78a8"),
    ("edges", "#f58518"),
    ("train", "#54a24b"),
    ("remote", "#e45756"),
)
_NAMES = {"train": "training nodes", "remote": "remote nodes (communication)"}
_WIDTH_INCHES, _HEIGHT_INCHES, _DOTS_PER_INCH = 10.0, 4.2, 130
_TOLERANCE = 0.05


def draw_parts(summary: dict[str, Any], path: Path) -> None:
    """Draw the output of `headrace graph info --json` as PNG; 1 is exactly the target size."""
    from matplotlib.figure import Figure

    rows = summary["parts"]
    figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
    axes = figure.add_subplot()
    shown = [(key, colour) for key, colour in _MEASURES if any(row.get(key) for row in rows)]
    width = 0.8 / max(1, len(shown))
    highest = 1.0
    for number, (key, colour) in enumerate(shown):
        total = sum(row[key] for row in rows)
        heights = [row[key] / (total * row["share"]) for row in rows]
        highest = max(highest, *heights)
        left = [row["part"] - 0.4 + (number + 0.5) * width for row in rows]
        axes.bar(left, heights, width * 0.95, color=colour, label=_NAMES.get(key, key))
    axes.axhline(1.0, color="#333333", linewidth=1.0)
    axes.axhline(1 + _TOLERANCE, color="#333333", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, highest * 1.18)
    axes.set_xticks([row["part"] for row in rows] if len(rows) <= 32 else [])
    axes.set_xlabel("partition")
    axes.set_ylabel("relative to target")
    quality = summary["quality"]
    cut = f", {quality['edge_cut']:.1%} of edges cut" if quality else ""
    axes.set_title(f"{summary['name']}: {len(rows)} partitions by {summary['method']}{cut}")
    axes.legend(ncols=4, loc="upper left", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=_DOTS_PER_INCH)
