"""How close `paced` comes to the load on the examples, with fixed volumes and varied ones.

    python benchmarks/pacing.py --json

The last line is one JSON object. Placements by `anneal`, 200 iterations, window unlimited, T = the
largest NIC load per iteration. With fixed volumes: `cycle`, the lambda of
docs/explanation/theory.md over T, and the makespans over N * T. By peak-to-mean ratio of the graph
traffic: `peak`, the largest NIC load if every flow had its largest volume drawn, over T, and the
makespans over N * T; means over seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headrace.api.documents.load import load_cluster, load_job, load_profile
from headrace.core.placement import Placement
from headrace.core.profile import Problem, Variation
from headrace.planner.methods import place
from headrace.simulator import Instance, build_instance, simulate
from tests.oracle.pacing import largest_load_s, paced_bound
from tests.oracle.theory import Shape, shape_of

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SETTINGS = ("testbed", "sim1", "sim2", "hetero")
PEAKS = (1.16, 1.5, 2.0, 3.0)
POLICIES = ("paced", "maxmin", "priority")
NUM_ITERATIONS = 200


class Setting:
    """An example with its placement."""

    def __init__(self, name: str) -> None:
        folder = EXAMPLES / name
        self.problem = Problem(
            load_cluster(folder / "cluster.yaml"),
            load_job(folder / "job.yaml"),
            load_profile(folder / "profile.yaml"),
        )
        self.placement: Placement = place("anneal", self.problem)

    def instance(self, peak_to_mean: float, seed: int) -> tuple[Instance, Shape]:
        variation = Variation(peak_to_mean=peak_to_mean)
        profile = self.problem.profile
        traffic = profile.store_traffic.model_copy(update={"variation": variation})
        instance, graph = build_instance(
            self.problem._replace(profile=profile.model_copy(update={"store_traffic": traffic})),
            self.placement,
            num_iterations=NUM_ITERATIONS,
            window=0,
            seed=seed,
        )
        return instance, shape_of(graph)


def measure(setting: Setting, num_seeds: int) -> dict[str, dict[str, float]]:
    """Figures per kind of volume."""

    def over_load(instance: Instance, policy: str) -> float:
        return simulate(instance, policy).makespan_s / (NUM_ITERATIONS * instance.pace_s)

    fixed, shape = setting.instance(1.0, seed=0)
    found = {"fixed": {"cycle": paced_bound(fixed, shape).cycle_s / fixed.pace_s}}
    found["fixed"] |= {policy: over_load(fixed, policy) for policy in POLICIES}
    for peak in PEAKS:
        drawn = [setting.instance(peak, seed)[0] for seed in range(num_seeds)]
        found[str(peak)] = {"peak": mean(peak_load_s(i) / i.pace_s for i in drawn)}
        found[str(peak)] |= {p: mean(over_load(i, p) for i in drawn) for p in POLICIES}
    return found


def peak_load_s(instance: Instance) -> float:
    record = simulate(instance, "maxmin", record=True).record
    assert record is not None
    return largest_load_s(instance, record.flow_bytes.max(axis=1))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare paced with the load on the examples.")
    parser.add_argument("--seeds", type=int, default=3, help="draws of the volumes (default 3)")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    args = parser.parse_args()
    found = {}
    for name in args.settings:
        found[name] = measure(Setting(name), args.seeds)
        for volume, figures in found[name].items():
            text = "  ".join(f"{key} {figure:.3f}" for key, figure in figures.items())
            if not args.json:
                print(f"{name:8} {volume:6} {text}", flush=True)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
