"""Plan the paper's settings and larger ones; compare with the paper's own planner and baselines.

    python benchmarks/planner.py --json
    python benchmarks/planner.py --quick --json

The last line is one JSON object. Means are over seeds; a seed draws the cluster (where the setting
is drawn), the search and the volumes of the search. Makespans are of 200 iterations (8 with
`--quick`) with volumes that no search has seen; the seed mix is uniform, as in the paper. `gap` is
ours over the lower bound: for makespans over 200 x the bound of T, at 256 and 1,024 machines for T
itself. `proven` is the share of seeds whose T equals the bound to 1e-9, or whose optimality CP-SAT
proved. `saving` is (theirs - ours) / theirs against `etp+oes`, the paper's planner with the best
beta.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from examples.draw_cluster import draw
from headrace.api.documents.load import load_cluster, load_job, load_profile
from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import InfeasibleError
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.planner.cost.nic_loads import build_load_model
from headrace.planner.cost.objective import evaluate
from headrace.planner.methods import place
from headrace.planner.methods.anneal_kernel import anneal, start_search
from headrace.planner.methods.critical_path import CriticalPath
from headrace.planner.methods.etp import BETAS, etp_betas
from headrace.planner.planner import make_plan
from headrace.simulator import Rehearser

ROOT = Path(__file__).resolve().parents[1]
ITERATIONS = 200
QUICK_ITERATIONS = 8
WINDOWS = {"": 2, "_k4": 4, "_unlimited": 0}
FRESH = 1_000_003
"""Added to a seed for volumes that the search has not seen."""


def example(name: str) -> Problem:
    """A committed example."""
    folder = ROOT / "examples" / name
    return Problem(
        load_cluster(folder / "cluster.yaml"),
        load_job(folder / "job.yaml"),
        load_profile(folder / "profile.yaml"),
    )


def drawn(name: str, seed: int) -> Problem:
    """One of the paper's simulation settings, the cluster drawn."""
    return example(name)._replace(cluster=draw(name, seed))


def tight(num_machines: int, seed: int) -> Problem:
    """Machines drawn as in section VI-B and as many trainers with 4 samplers as fit at all."""
    _, job, profile = example("sim2")
    rng = np.random.default_rng([num_machines, seed])
    machines = []
    for m in range(num_machines):
        nic = float(rng.choice([10, 20, 50])) * 1e9 / 8
        resources = {
            "memory": float(rng.integers(32, 129)) * 1e9,
            "cpu": float(rng.integers(4, 17)),
            "gpu": float(rng.integers(1, 5)),
        }
        machines.append(Machine(name=f"m{m}", resources=resources, nic_in=nic, nic_out=nic))
    cluster = Cluster(machines=tuple(machines))
    per_trainer = 1 + 2 * job.samplers_per_trainer
    trainers = int(sum(machine.resources["cpu"] for machine in machines)) // per_trainer
    while True:
        problem = Problem(cluster, job.model_copy(update={"trainers": trainers}), profile)
        try:
            place("ifs", problem)
            return problem
        except InfeasibleError:
            trainers -= 1


def roomy(num_machines: int, seed: int) -> Problem:
    """Machines drawn as in section VI-B with 1.25 trainers per machine, as at 1,024 machines."""
    problem = tight(num_machines, seed)
    return problem._replace(job=problem.job.model_copy(update={"trainers": num_machines}))


@dataclass(frozen=True)
class Setting:
    """What to plan, and what is too large to compare."""

    case: Callable[[int], Problem]
    rivals: bool = True
    makespans: bool = True
    seeds: int = 10


SETTINGS = {
    "testbed": Setting(lambda seed: example("testbed")),
    "sim1": Setting(lambda seed: drawn("sim1", seed)),
    "sim2": Setting(lambda seed: drawn("sim2", seed)),
    "hetero": Setting(lambda seed: example("hetero")),
    "tight64": Setting(lambda seed: tight(64, seed), rivals=False),
    "m256": Setting(lambda seed: roomy(256, seed), rivals=False, makespans=False),
    "m1024": Setting(lambda seed: example("scale1024"), rivals=False, makespans=False, seeds=1),
}
QUICK = ("testbed", "sim1", "sim2", "hetero")
RIVAL_POLICIES = ("omcoflow", "mrtf", "mrtf-exclusive")


def paper_plan(
    problem: Problem, seed: int, betas: tuple[float, ...]
) -> tuple[Placement, list[float]]:
    """The paper's DGTP: ETP with the best beta; also the seconds of every search."""
    seconds, results = [], []
    for beta in betas:
        start = time.perf_counter()
        results.append(etp_betas(problem, betas=(beta,), seed=seed)[beta])
        seconds.append(time.perf_counter() - start)
    return min(results, key=lambda result: result.makespan_s).placement, seconds


def measure(
    setting: Setting, seed: int, betas: tuple[float, ...], iterations: int
) -> dict[str, Any]:
    """All figures of one setting and seed."""
    problem = setting.case(seed)
    found: dict[str, Any] = {}
    theirs, colocated = None, None
    if setting.rivals:
        theirs, found["etp_10k_s"] = paper_plan(problem, seed, betas)
        colocated = place("colocate", problem, seed)
    for suffix, window in WINDOWS.items():
        job = problem.job.model_copy(update={"window": window, "iterations": iterations})
        problem = problem._replace(job=job)
        start = time.perf_counter()
        plan = make_plan(problem, seed=seed, seed_mix="uniform")
        if suffix == "":
            # The prediction over 200 iterations is not part of the search, but of the plan.
            found["plan_s"] = time.perf_counter() - start
            found["search_s"] = plan_search_s(problem, seed)
            found["proven"] = float(plan.proven)
            found["load_gap"] = plan.terms.time_s / plan.bound_s - 1
            found["gap"] = found["load_gap"]
            found["policy"] = plan.policy
        if not setting.makespans:
            break
        rehearser = Rehearser(problem, num_iterations=iterations, window=window, seed=seed + FRESH)
        ours = rehearser.makespan_s(plan.placed, plan.policy, plan.seeds)
        makespans = {"ours": ours}
        if theirs is not None and colocated is not None:
            makespans["etp+oes"] = rehearser.makespan_s(theirs, "oes")
            makespans["colocate+oes"] = rehearser.makespan_s(colocated, "oes")
            makespans["colocate+fifo"] = rehearser.makespan_s(colocated, "fifo")
            for policy in RIVAL_POLICIES:
                makespans[f"etp+{policy}"] = rehearser.makespan_s(theirs, policy)
            found[f"saving{suffix}"] = 1 - ours / makespans["etp+oes"]
        found[f"makespan_s{suffix}"] = makespans
        found[f"gap{suffix}"] = ours / (iterations * plan.bound_s) - 1
    return found


def plan_search_s(problem: Problem, seed: int) -> float:
    """Seconds from the inputs to placement and policy, without the long prediction."""
    steps: list[tuple[str, float]] = []
    start = time.perf_counter()
    make_plan(
        problem,
        seed=seed,
        seed_mix="uniform",
        on_step=lambda name: steps.append((name, time.perf_counter() - start)),
    )
    return dict(steps)["predicting"]


def rank_correlation(problem: Problem, num_placements: int) -> dict[str, float]:
    """Spearman correlation with 20-iteration makespans over placements of a random walk."""
    job = problem.job
    model = build_load_model(problem, local_seeds=False)
    first = place("ifs", problem)
    search = start_search(
        model, np.array(first.samplers + first.trainers + first.servers, dtype=np.int64), 1
    )
    path = CriticalPath(problem, seed=0)
    rehearser = Rehearser(problem, num_iterations=20, window=0, seed=0)
    rows = []
    for _ in range(num_placements):
        anneal(model, search, 200, 1.0, 1e30, 1e30)
        at = [int(m) for m in search.machine]
        split = (job.num_samplers, job.num_samplers + job.trainers)
        placement = Placement(
            samplers=tuple(at[: split[0]]),
            trainers=tuple(at[split[0] : split[1]]),
            servers=tuple(at[split[1] :]),
        )
        rows.append(
            (
                evaluate(problem, placement, window=0).time_s,
                path.length_s(placement),
                rehearser.makespan_s(placement, "oes"),
                rehearser.makespan_s(placement, "maxmin"),
            )
        )
    ranks = np.argsort(np.argsort(np.array(rows), axis=0), axis=0)
    table = np.asarray(np.corrcoef(ranks.T)).reshape(4, 4)
    return {
        "objective_oes": round(float(table[0, 2]), 3),
        "critical_path_oes": round(float(table[1, 2]), 3),
        "objective_maxmin": round(float(table[0, 3]), 3),
        "critical_path_maxmin": round(float(table[1, 3]), 3),
    }


def seed_mix_savings(problem: Problem) -> dict[str, dict[str, float]]:
    """What seeds that follow placement save over a uniform mix, by locality."""
    profile = problem.profile
    savings = {}
    for locality in (0.0, 0.25, 0.5, 0.75, 0.9):
        traffic = profile.store_traffic.model_copy(update={"locality": locality})
        local = problem._replace(profile=profile.model_copy(update={"store_traffic": traffic}))
        plans = {mix: make_plan(local, seed_mix=mix) for mix in ("uniform", "local-first")}
        mine, uniform = plans["local-first"], plans["uniform"]
        savings[str(locality)] = {
            "traffic": round(1 - mine.network_bytes / uniform.network_bytes, 4),
            "time_per_iteration": round(1 - mine.terms.time_s / uniform.terms.time_s, 4),
        }
    return savings


def average(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds; names are listed, savings also with their worst seed."""
    result: dict[str, Any] = {}
    for key, first in rows[0].items():
        values = [row[key] for row in rows]
        if isinstance(first, dict):
            result[key] = average(values)
        elif isinstance(first, list):
            result[key] = round(mean(mean(value) for value in values), 4)
        elif isinstance(first, str):
            result[key] = sorted(set(values))
        else:
            result[key] = round(mean(values), 5)
            if key.startswith("saving"):
                result[f"worst_{key}"] = round(min(values), 5)
    return result


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="2 seeds, the paper's settings")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--settings", help="comma-separated names instead of all")
    parser.add_argument("--seeds", type=int, help="seeds per setting")
    parser.add_argument("--first-seed", type=int, default=0, help="to share the work")
    parser.add_argument("--merge", type=Path, nargs="+", help="results to merge instead of running")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    names = args.settings.split(",") if args.settings else (QUICK if args.quick else SETTINGS)
    betas = BETAS[1:4:2] if args.quick else BETAS
    iterations = QUICK_ITERATIONS if args.quick else ITERATIONS
    began = time.perf_counter()
    if args.merge:
        document = merge([json.loads(path.read_text()) for path in args.merge])
    else:
        rows: dict[str, list[dict[str, Any]]] = {}
        correlations: dict[str, Any] = {}
        for name in names:
            setting = SETTINGS[name]
            num_seeds = args.seeds or (2 if args.quick else setting.seeds)
            last = min(setting.seeds, args.first_seed + num_seeds)
            # Compile before the clock runs.
            if setting.makespans:
                make_plan(setting.case(0), seed_mix="uniform", steps=100)
            if setting.rivals:
                etp_betas(setting.case(0), betas=(1000.0,), seed=0, steps=100)
            rows[name] = [
                measure(setting, seed, betas, iterations) for seed in range(args.first_seed, last)
            ]
            if setting.rivals and args.first_seed == 0:
                num_placements = 30 if args.quick else 200
                correlations[name] = rank_correlation(setting.case(0), num_placements)
            if not args.json:
                print(f"{name}: {json.dumps(average(rows[name]))}", flush=True)
        document = {
            "settings": summary(rows),
            "rank_correlation": correlations,
            "seed_mix_saving": {
                name: seed_mix_savings(SETTINGS[name].case(0))
                for name in ("testbed", "sim1")
                if name in names and args.first_seed == 0
            },
            "iterations": iterations,
            "betas": list(betas),
            "rows": rows,
            "commands": ["python benchmarks/planner.py " + " ".join(sys.argv[1:])],
        }
    document |= {
        "seconds": round(document.get("seconds", 0.0) + time.perf_counter() - began, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps({key: value for key, value in document.items() if key != "rows"}))
    return 0


def summary(rows: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Means per setting."""
    return {name: average(found) | {"num_seeds": len(found)} for name, found in rows.items()}


def merge(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """One document of several runs that shared the settings or the seeds."""
    merged: dict[str, Any] = {"settings": {}}
    rows: dict[str, list[dict[str, Any]]] = {}
    for document in documents:
        for name, found in document["rows"].items():
            rows.setdefault(name, []).extend(found)
        for key in ("rank_correlation", "seed_mix_saving"):
            merged[key] = merged.get(key, {}) | document[key]
        merged["commands"] = merged.get("commands", []) + document["commands"]
        merged["seconds"] = merged.get("seconds", 0.0) + document["seconds"]
        merged |= {key: document[key] for key in ("iterations", "betas")}
    return merged | {"settings": summary(rows), "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
