"""Plans for machines of different speed, against every placement and against the baselines.

    python benchmarks/speeds.py --json --output benchmarks/results/speeds.json
    python benchmarks/speeds.py --only shares,curves --output benchmarks/results/speeds.json
    python benchmarks/speeds.py --quick --json

The last line is one JSON object:

- `cases`: fast and slow machines with known answers: simulated time per iteration of our plan, of
  `etp` and of all trainers on fast machines;
- `random`: clusters of up to four machines with speeds from 1:1 to 1:8 and at most ten tasks: our
  time over that of the best of all placements (mean and worst), over the best of the baselines
  (worst), and the number of bounds above the best objective;
- `search_s`: seconds from the inputs to placement and policy in the paper's settings and with 64
  machines; `plan_s` has the same with the prediction;
- `shares`: batch shares in the simulator: our time over that of equal shares and over the best of
  a grid search of shares, on random clusters; time saved where trainers of two speeds bind;
- `shares_for_real`: the same on a testbed with CPU quotas of 1:2, with accuracy; null if quick;
- `curves`: growth of batches with their seeds on real graphs: largest relative errors of predicted
  nodes, edges and bytes, between the measured sizes and at twice the largest;
- `owner`: `partition --cluster` and `plan --graph` on real graphs: rows per iteration from other
  machines over those of local-first and uniform seeds, and planned against assigned seeds;
- `mode_b`: mode b of `closed_loop.py` with the planner's choice of seeds and with uniform seeds:
  seconds per iteration and bytes from stores; null if quick;
- `clusters`: input nodes and accuracy with ranges of second-level clusters instead of a mix;
- `ties`: symmetric jobs whose two kernels differ from exact fractions by more than 1e-9;
- `drift`: a CPU quota is halved during a run on a testbed; null if quick.

The best of all placements is simulated: those with the smallest objectives under every policy that
`auto` may choose.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.batch_shares import run_shares
from benchmarks.curves import GRAPHS, run_curves
from benchmarks.machine import describe_machine
from benchmarks.owner_compute import CLUSTERED, OWNED, run_clusters, run_mode_b, run_owner
from benchmarks.planner import drawn, plan_search_s, tight
from benchmarks.shares_testbed import run_real
from benchmarks.slow_cpu import run_drift
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role, Sync
from headrace.core.placement import Placement
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime
from headrace.planner.cost.objective import evaluate
from headrace.planner.methods import place
from headrace.planner.planner import make_plan, policies_to_try
from headrace.simulator import build_instance, simulate
from tests.oracle.comparison import exact_differences
from tests.oracle.placements import all_placements

NUM_CLUSTERS, NUM_QUICK = 200, 2
BASELINES = ("colocate", "ifs", "etp")
ITERATIONS = 40
NUM_SIMULATED = 30
"""Placements with the smallest objectives that are simulated."""


def case(
    trainer_s: dict[str, float], nic: float, counts: dict[str, int], gpus: int, trainers: int
) -> Problem:
    """Machines of several speeds with as many GPUs each."""
    machines = tuple(
        Machine(
            name=kind,
            count=num,
            kind=kind,
            resources={"cpu": 64, "gpu": gpus},
            nic_in=nic,
            nic_out=nic,
        )
        for kind, num in counts.items()
    )
    job = Job(
        trainers=trainers,
        samplers_per_trainer=2,
        batch_size=1000,
        model_bytes=1e6,
        demands={Role.TRAINER: {"cpu": 2, "gpu": 1}, Role.SAMPLER: {"cpu": 2}},
    )
    profile = Profile(
        task_times={
            Role.STORE: {"default": TaskTime(mean=0.005)},
            Role.SAMPLER: {"default": TaskTime(mean=0.02)},
            Role.TRAINER: {kind: TaskTime(mean=mean) for kind, mean in trainer_s.items()},
            Role.RING: {"default": TaskTime(mean=0.00005)},
        },
        store_traffic=StoreTraffic(bytes_per_seed=20_000),
        batch_traffic=BatchTraffic(bytes_per_seed=20_000),
    )
    return Problem(Cluster(machines=machines), job, profile)


THREE = {"fast": 0.03, "slow": 0.09}
CASES = {
    "slow-trainers": case(THREE, 25e9 / 8, {"fast": 2, "slow": 2}, 4, 8),
    "one-slow": case(THREE, 25e9 / 8, {"fast": 3, "slow": 1}, 4, 8),
    "one-to-four": case({"fast": 0.2, "slow": 0.8}, 10e9 / 8, {"fast": 2, "slow": 2}, 2, 4),
}


def trainers_bind(ratio: float) -> Problem:
    """Two speeds, as many trainers as GPUs, and little traffic."""
    times_s = {"fast": 0.2, "slow": 0.2 * ratio}
    problem = case(times_s, 25e9 / 8, {"fast": 2, "slow": 2}, 2, 8)
    light = {
        "store_traffic": StoreTraffic(bytes_per_seed=2_000),
        "batch_traffic": BatchTraffic(bytes_per_seed=2_000),
    }
    return problem._replace(profile=problem.profile.model_copy(update=light))


def random_problem(seed: int) -> Problem:
    """Up to four machines of up to three speeds, at most ten tasks."""
    rng = np.random.default_rng(seed)
    num = int(rng.integers(2, 5))
    ratio = float(rng.choice([1, 2, 4, 8]))
    kinds = {"fast": 1.0, "middle": float(np.sqrt(ratio)), "slow": ratio}
    machines = []
    for m in range(num):
        nic = float(rng.choice([1, 5, 10, 25])) * 1e9 / 8
        machines.append(
            Machine(
                name=f"m{m}",
                kind=str(rng.choice(list(kinds))),
                resources={"gpu": int(rng.integers(1, 4)), "cpu": int(rng.integers(3, 9))},
                nic_in=nic,
                nic_out=nic,
            )
        )
    sync = list(Sync)[int(rng.integers(2))]
    samplers = int(rng.integers(1, 3))
    servers = int(rng.integers(1, 3)) if sync is Sync.PS else 0
    most = min(
        (10 - num - servers) // (1 + samplers), sum(int(m.resources["gpu"]) for m in machines)
    )
    job = Job(
        trainers=max(1, int(rng.integers(1, most + 1)) if most > 1 else 1),
        samplers_per_trainer=samplers,
        sync=sync,
        parameter_servers=max(1, servers),
        batch_size=1000,
        model_bytes=float(rng.choice([1e5, 1e6, 1e7])),
        window=int(rng.choice([1, 2, 4])),
        demands={Role.TRAINER: {"gpu": 1, "cpu": 1}, Role.SAMPLER: {"cpu": 1}},
    )
    base_s = {Role.STORE: 0.002, Role.SAMPLER: 0.02, Role.TRAINER: 0.04, Role.SERVER: 0.002}
    profile = Profile(
        task_times={
            role: {
                kind: TaskTime(mean=mean * (speed if role is not Role.STORE else 1.0))
                for kind, speed in kinds.items()
            }
            for role, mean in base_s.items()
        },
        store_traffic=StoreTraffic(bytes_per_seed=float(rng.choice([2e3, 2e4, 6e4]))),
        batch_traffic=BatchTraffic(bytes_per_seed=float(rng.choice([2e3, 2e4]))),
    )
    return Problem(Cluster(machines=tuple(machines)), job, profile)


def time_s(problem: Problem, placement: Placement, policy: str) -> float:
    """Simulated time per iteration with a uniform seed mix."""
    instance, _ = build_instance(problem, placement, num_iterations=ITERATIONS)
    return simulate(instance, policy).makespan_s / ITERATIONS


def best_time_s(problem: Problem, placement: Placement) -> float:
    """Simulated time per iteration under the best policy that `auto` may choose."""
    numbered = placement.numbered_by_ring()
    return min(time_s(problem, numbered, policy) for policy in policies_to_try("auto", problem))


def compare(problem: Problem) -> dict[str, float] | None:
    """Our plan against all placements; None if the job does not fit."""
    objectives_s = {each: evaluate(problem, each).time_s for each in all_placements(problem)}
    if not objectives_s:
        return None
    plan = make_plan(problem, seed_mix="uniform", shares="equal")
    ours_s = time_s(problem, plan.placed, plan.policy)
    ranked = sorted(objectives_s, key=lambda each: objectives_s[each])[:NUM_SIMULATED]
    best_s = min(best_time_s(problem, each) for each in ranked)
    baseline_s = min(best_time_s(problem, place(method, problem)) for method in BASELINES)
    least_s = objectives_s[ranked[0]]
    return {
        "over_best": ours_s / min(best_s, ours_s),
        "over_baselines": ours_s / baseline_s,
        "objective_over_least": plan.terms.time_s / least_s,
        "bound_over_least": plan.bound_s / least_s,
    }


def run_cases(is_quick: bool) -> dict[str, Any]:
    """The cases with known answers; if quick, only that which `etp` places fastest."""
    found: dict[str, Any] = dict.fromkeys(CASES)
    for name, problem in CASES.items():
        if is_quick and name != "one-to-four":
            continue
        plan = make_plan(problem, shares="equal")
        paper = make_plan(problem, method="etp")
        fast = [m for m, host in enumerate(problem.cluster.hosts) if host.kind == "fast"]
        trainers = tuple(fast[w % len(fast)] for w in range(problem.job.trainers))
        by_hand = Placement(samplers=tuple(np.repeat(trainers, 2).tolist()), trainers=trainers)
        hand_s = best_time_s(problem, by_hand)
        found[name] = {
            "ours_s": plan.time_s,
            "etp_s": paper.time_s,
            "by_hand_s": hand_s,
            "over_etp": plan.time_s / paper.time_s,
            "over_by_hand": plan.time_s / hand_s,
            "bound_s": plan.bound_s,
        }
    return found


def run_random(num_clusters: int) -> dict[str, Any]:
    """Random clusters against all placements."""
    rows: list[dict[str, float]] = []
    seed = 0
    while len(rows) < num_clusters:
        row = compare(random_problem(seed))
        seed += 1
        if row is not None:
            rows.append(row)
    over_best = [row["over_best"] for row in rows]
    return {
        "clusters": len(rows),
        "over_best_mean": float(np.mean(over_best)),
        "over_best_worst": max(over_best),
        "over_baselines_worst": max(row["over_baselines"] for row in rows),
        "worse_than_a_baseline": sum(row["over_baselines"] > 1 + 1e-6 for row in rows),
        "objective_over_least_mean": float(np.mean([row["objective_over_least"] for row in rows])),
        "bounds_above_the_truth": sum(row["bound_over_least"] > 1 + 1e-9 for row in rows),
    }


def run_searches() -> dict[str, Any]:
    """Seconds to search and to plan, kernels compiled."""
    found: dict[str, Any] = {"plan_s": {}}
    for name, problem in (
        ("sim1", drawn("sim1", 0)),
        ("sim2", drawn("sim2", 0)),
        ("64 machines", tight(64, 0)),
    ):
        make_plan(problem)
        begin = time.perf_counter()
        found[name] = plan_search_s(problem, 0)
        found["plan_s"][name] = time.perf_counter() - begin
    return found


def run_ties(num_instances: int) -> dict[str, Any]:
    """Symmetric jobs with many simultaneous events, against exact fractions."""
    rows = [exact_differences(1000 + seed) for seed in range(num_instances)]
    return {"instances": num_instances, "differing": sum(map(bool, rows))}


PARTS: dict[str, Callable[[bool], Any]] = {
    "cases": run_cases,
    "random": lambda is_quick: run_random(NUM_QUICK if is_quick else NUM_CLUSTERS),
    "search_s": lambda is_quick: run_searches(),
    "shares": lambda is_quick: run_shares(
        NUM_QUICK if is_quick else NUM_CLUSTERS, random_problem, trainers_bind
    ),
    "shares_for_real": lambda is_quick: None if is_quick else run_real(),
    "curves": lambda is_quick: run_curves(1 if is_quick else len(GRAPHS)),
    "owner": lambda is_quick: run_owner(1 if is_quick else len(OWNED)),
    "mode_b": lambda is_quick: None if is_quick else run_mode_b(),
    "clusters": lambda is_quick: run_clusters(*((1, 1, 2) if is_quick else (len(CLUSTERED), 5))),
    "ties": lambda is_quick: run_ties(10 if is_quick else 5000),
    "drift": lambda is_quick: None if is_quick else run_drift(),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help=f"{NUM_QUICK} random clusters")
    parser.add_argument("--only", help=f"of {', '.join(PARTS)}, by commas")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--output", type=Path, help="result file to write, or to add to")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the testbed down
    begin = time.perf_counter()
    found: dict[str, Any] = dict.fromkeys(PARTS)
    if args.output and args.output.exists():
        found = json.loads(args.output.read_text())
    for name in args.only.split(",") if args.only else PARTS:
        found[name] = PARTS[name](args.quick)
        if args.output:
            found |= {
                "date": datetime.now(UTC).strftime("%Y-%m-%d"),
                "machine": describe_machine(),
                "command": "python benchmarks/speeds.py " + " ".join(sys.argv[1:]),
            }
            args.output.write_text(json.dumps(found, indent=1) + "\n")
    found["seconds"] = round(time.perf_counter() - begin, 1)
    if not args.json:
        print(json.dumps(found, indent=1))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
