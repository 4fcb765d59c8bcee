"""Coflows in the simulator: all-to-alls beside their lower bound, and the order of a training DAG.

    python benchmarks/coflows.py --json

`all_to_alls` are random, with equal and with unequal NICs: the makespan under `matching` and
`maxmin` over the lower bound, the largest sum of bytes into or out of a machine over its bandwidth.
`training` is `examples/coflows` with several draws of the experts' popularity: the makespan under
the order by bin, type and layer over that under fair sharing (`maxmin`). The last line is one JSON
object. The exit code is 1 if `matching` is slower than `maxmin` in any all-to-all, or 1 % above the
lower bound.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from examples.coflows import make
from headrace import CoflowGraph, load_coflows, simulate_coflows
from tests.oracle.coflows import lower_bound_s, random_all_to_all

NUM_ALL_TO_ALLS = 200
NUM_DRAWS, NUM_QUICK_DRAWS = 20, 4
NICS = ("25Gbps", "50Gbps", "100Gbps")
ORDERS = ("priority", "matching")
ROUNDING = 1e-9
"""Relative difference of makespans that is a rounding error."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Simulate coflows.")
    parser.add_argument("--seed", type=int, default=0, help="first seed of the all-to-alls")
    parser.add_argument("--quick", action="store_true", help="fewer draws, under 50 s")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()

    start = time.perf_counter()
    found: dict[str, Any] = {
        "all_to_alls": {
            name: try_all_to_alls(args.seed, equal_nics)
            for name, equal_nics in (("equal_nics", True), ("unequal_nics", False))
        },
        "training": {
            nic: try_training(nic, NUM_QUICK_DRAWS if args.quick else NUM_DRAWS) for nic in NICS
        },
    }
    found["seconds"] = round(time.perf_counter() - start, 2)
    if args.output:
        origin = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": describe_machine(),
            "command": "python benchmarks/coflows.py " + " ".join(sys.argv[1:]),
        }
        args.output.write_text(json.dumps(found | origin, indent=1) + "\n")
    if not args.json:
        show(found)
    print(json.dumps(found))
    return int(
        any(
            each["num_slower"] or each["matching_over_bound"]["most"] > 1.01
            for each in found["all_to_alls"].values()
        )
    )


def try_all_to_alls(seed: int, equal_nics: bool) -> dict[str, Any]:
    """Makespans of random all-to-alls, relative to their lower bounds and to max-min."""
    matching, maxmin = [], []
    for each in range(seed, seed + NUM_ALL_TO_ALLS):
        graph = random_all_to_all(each, equal_nics=equal_nics)
        bound_s = lower_bound_s(graph)
        matching.append(simulate_coflows(graph, "matching").makespan_s / bound_s)
        maxmin.append(simulate_coflows(graph, "maxmin").makespan_s / bound_s)
    return {
        "num": NUM_ALL_TO_ALLS,
        "num_slower": sum(
            ours > theirs * (1 + ROUNDING) for ours, theirs in zip(matching, maxmin, strict=True)
        ),
        "matching_over_bound": spread(matching),
        "maxmin_over_bound": spread(maxmin),
    }


def try_training(nic: str, num_draws: int) -> dict[str, Any]:
    """Makespans of the example under each order, relative to fair sharing."""
    ratios: dict[str, list[float]] = {order: [] for order in ORDERS}
    for seed in range(num_draws):
        graph = example(nic, seed)
        fair_s = simulate_coflows(graph, "maxmin").makespan_s
        for order in ORDERS:
            ratios[order].append(simulate_coflows(graph, order).makespan_s / fair_s)
    over_maxmin = {f"{order}_over_maxmin": spread(ratios[order]) for order in ORDERS}
    return {"num_draws": num_draws} | over_maxmin


def example(nic: str, seed: int) -> CoflowGraph:
    """The example with other NICs or another draw."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "coflows.yaml"
        path.write_text(make.text(nic, seed))
        return load_coflows(path)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, least and most; ratios to the lower bound keep all digits."""
    return {"mean": round(mean(values), 4), "least": min(values), "most": max(values)}


def show(found: dict[str, Any]) -> None:
    """Print a line per figure."""
    for part in ("all_to_alls", "training"):
        for name, figures in found[part].items():
            for key, value in figures.items():
                print(f"{part:12} {name:14} {key:24} {value}")


if __name__ == "__main__":
    sys.exit(main())
