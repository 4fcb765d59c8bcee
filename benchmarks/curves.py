"""Curves of nodes, edges and bytes over seeds: predicted against sampled, on real graphs."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.graph_checks import DATA

GRAPHS = {
    "planetoid/pubmed.npz": "test",
    "amazon_computers": "train",
    "coauthor_cs": "train",
    "coauthor_physics": "train",
    "debian_bookworm": "train",
}
"""Graphs, and the split of the seeds: the other splits of Pubmed have at most 500 seeds."""

FAN_OUTS = ([15, 10], [10, 10, 10], [5, 5])
SEEDS = 64
"""Seeds of a sub-batch; the curve is measured at a quarter, one and four times as many."""


def run_curves(num_graphs: int) -> dict[str, Any]:
    """Largest relative errors between the measured sizes and at twice the largest."""
    from headrace.api.graph import partition
    from headrace.profiling.from_graph import sample_batches, sample_growth

    rows: list[dict[str, Any]] = []
    for name in list(GRAPHS)[:num_graphs]:
        with tempfile.TemporaryDirectory() as scratch:
            graph = partition(str(DATA / name), Path(scratch) / "parts", 4)
            for fan_out in FAN_OUTS:
                split: Any = GRAPHS[name]
                growth = sample_growth(graph, fan_out, SEEDS, split=split)
                low, middle, high = growth.seeds
                for place, size in (
                    ("between", (low * middle) ** 0.5),
                    ("between", (middle * high) ** 0.5),
                    ("twice", 2 * high),
                ):
                    seeds = round(size)
                    draws = max(20, 2000 // seeds)
                    found = sample_batches(
                        graph, fan_out, [seeds], num_draws=draws, split=split, seed=1
                    )
                    errors = {
                        each: float(growth.values_at(each, seeds)) / values[0] - 1
                        for each, values in found.items()
                    }
                    rows.append(
                        {"graph": name, "fan_out": fan_out, "seeds": seeds, "place": place} | errors
                    )
    quantities = ("nodes", "edges", "store_bytes", "batch_bytes")
    return {
        "graphs": num_graphs,
        "fan_outs": len(FAN_OUTS),
        **{
            f"worst_{place}": {
                each: max(abs(row[each]) for row in rows if row["place"] == place)
                for each in quantities
            }
            for place in ("between", "twice")
        },
        "rows": rows,
    }
