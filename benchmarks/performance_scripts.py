"""The section of converted scripts on the performance page."""

from __future__ import annotations

from statistics import mean

from benchmarks.performance_format import Result, Table, dig, show, table


def converted(result: Result) -> Table:
    """Accuracy of scripts by how they are run, beside PyG's own loader."""
    rows = []
    for name, script in (result.get("scripts") or {}).items():
        for way, points in ((script or {}).get("points") or {}).items():
            rows.append(
                (
                    name.replace("_", " "),
                    str(script["lines_changed"]),
                    way,
                    f"{mean(points):.2f}",
                    show(dig(script, f"{way}/difference")),
                    show(dig(script, f"{way}/standard_error")),
                )
            )
    head = ("script", "lines changed", "way", "points, mean", "over PyG", "standard error")
    return table(head, rows)
