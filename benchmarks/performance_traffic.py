"""What the performance page shows of the bytes between machines: part of `performance_page.py`."""

from __future__ import annotations

from benchmarks.performance_format import Result, Table, by_name, figures

_ON_A_GRAPH = (
    ("features as", "form", ""), ("bytes", "bytes", "%"), ("with a cache", "cached", "%"),
    ("hit rate", "hit_rate", "%"), ("predicted", "predicted_hit_rate", "%"),
    ("accuracy, points", "points", ""), ("standard error", "standard_error", ""),
    ("disk, MB", "disk_mb", ""), ("CPU of an explanation over training", "explanation_cpu", ""),
)  # fmt: skip

_LIVE = (
    ("per iteration", "iteration_s", "s"), ("predicted", "predicted_s", "s"),
    ("times faster", "times_faster", ""), ("hit rate", "hit_rate", "%"),
    ("predicted", "predicted_hit_rate", "%"), ("cores in use", "cpu_share", "%"),
    ("busiest NIC in use", "busiest/share", "%"),
)  # fmt: skip


def traffic(result: Result) -> Table:
    """Bytes between machines, and the accuracy."""
    tables = [
        by_name(result, f"graphs/{name}", name, *_ON_A_GRAPH) for name in result.get("graphs", {})
    ]
    return [
        *(line for each in tables for line in each),
        *by_name(result, "live", "shaped testbed", *_LIVE),
        *figures(result, ("draws with far=0.25 over uniform ones", "far_cost", "")),
        *figures(
            result,
            *(
                (f"draws with LABOR over uniform ones, {name}", f"labor_cost/{name}", "")
                for name in result.get("labor_cost", {})
            ),
        ),
        *figures(result, ("decoded from int8, GB/s per core", "codec/int8", "")),
    ]
