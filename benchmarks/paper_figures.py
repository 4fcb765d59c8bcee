"""Reproduce Fig. 10 and Fig. 11 of the paper (DGTP, section VI-B) with our schemes beside its own.

    python benchmarks/paper_figures.py
    python benchmarks/paper_figures.py --quick --json

Training time by seeds per sampler (Fig. 10) and by peak-to-mean ratio (Fig. 11), on ogbn-products
and ogbn-papers100M, as means over drawn clusters. The run-ahead window is unlimited and the seed
mix uniform, as in the paper. A training time is the time per iteration of a short rehearsal, with
volumes that no search has seen, times the iterations of all epochs. Writes two pictures and one
JSON file; the last line printed is that JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from benchmarks.paper_pictures import (
    AUTO,
    BOUND,
    SCHEMES,
    SETTINGS,
    Setting,
    Times,
    draw_all,
    gain_table,
    markdown,
    num_iterations,
)
from benchmarks.planner import FRESH, drawn, rank_correlation
from headrace.core.job import Role
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.planner.methods import place
from headrace.planner.methods.critical_path import PATH_ITERATIONS
from headrace.planner.methods.etp import BETAS, EtpResult, etp_betas
from headrace.planner.planner import make_plan
from headrace.simulator import Rehearser

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
RESULTS = ROOT / "benchmarks" / "results" / "paper_figures.json"


@dataclass(frozen=True)
class Effort:
    """How much to measure.

    Attributes:
        sizes: Seeds per sampler, besides the profiled number.
        pmrs: Peak-to-mean ratios, besides the profiled one.
        betas: Of ETP; the best one counts.
        num_clusters: Clusters drawn per setting.
        num_walked: Placements by which costs are correlated with makespans.
        shorten: Divides the iterations rehearsed.
    """

    sizes: tuple[int, ...] = (250, 500, 1000, 2000)
    pmrs: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0)
    betas: tuple[float, ...] = BETAS
    num_clusters: int = 5
    num_walked: int = 200
    shorten: int = 1


QUICK = Effort((250,), (2.0,), BETAS[1:4:2], num_clusters=1, num_walked=40, shorten=3)

STEEPER = (1e4, 1e5)
"""If the paper counted in milliseconds, its beta was 0.1 x 45,000 and more of ours: tried too."""


def at_batch_size(problem: Problem, seeds_per_sampler: int) -> Problem:
    """The problem with another number of seeds per sampler, and an unlimited window.

    Volumes, sampler and trainer times follow the seeds by themselves. A store serves all samplers,
    so its time, which a profile keeps per iteration, is scaled here.
    """
    cluster, job, profile = problem
    factor = seeds_per_sampler / profile.seeds_per_sampler
    stores = {
        kind: known.model_copy(update={"mean": known.mean * factor})
        for kind, known in profile.task_times[Role.STORE].items()
    }
    times = {**profile.task_times, Role.STORE: stores}
    job = job.model_copy(
        update={"batch_size": seeds_per_sampler * job.samplers_per_trainer, "window": 0}
    )
    return Problem(cluster, job, profile.model_copy(update={"task_times": times}))


def with_pmr(problem: Problem, pmr: float) -> Problem:
    """The problem with graph data that varies by another peak-to-mean ratio."""
    profile = problem.profile
    variation = profile.store_traffic.variation.model_copy(update={"peak_to_mean": pmr})
    traffic = profile.store_traffic.model_copy(update={"variation": variation})
    return problem._replace(profile=profile.model_copy(update={"store_traffic": traffic}))


@dataclass(frozen=True)
class Decided:
    """What was decided before training begins."""

    placements: dict[str, Placement]
    policy: str
    bound_s: float
    searches: dict[float, EtpResult]


def decide(problem: Problem, seed: int, betas: tuple[float, ...]) -> Decided:
    """Place by all three methods; ours also chooses a policy."""
    plan = make_plan(problem, seed=seed, seed_mix="uniform")
    searches = etp_betas(problem, betas=betas, seed=seed)
    return Decided(
        placements={
            "anneal": plan.placed,
            "etp": min(searches.values(), key=lambda found: found.makespan_s).placement,
            "colocate": place("colocate", problem, seed),
        },
        policy=plan.policy,
        bound_s=plan.bound_s,
        searches=searches,
    )


def describe_search(problem: Problem, decided: Decided, seed: int) -> dict[str, Any]:
    """How far ETP comes: seconds per iteration under `oes`, and placements it rehearsed, by beta.

    By the volumes and the 20 iterations of the search itself; beside it where the search starts
    (`ifs`) and DistDGL's placement.
    """
    rehearser = Rehearser(problem, num_iterations=PATH_ITERATIONS, window=0, seed=seed)
    start = place("ifs", problem, seed)
    searches = decided.searches | etp_betas(problem, betas=STEEPER, seed=seed)
    return {
        "ifs": round(rehearser.makespan_s(start, "oes") / PATH_ITERATIONS, 4),
        "colocate": round(
            rehearser.makespan_s(decided.placements["colocate"], "oes") / PATH_ITERATIONS, 4
        ),
        "etp": {
            f"{beta:g}": {
                "time_s": round(found.makespan_s / PATH_ITERATIONS, 4),
                "num_simulated": found.num_simulated,
            }
            for beta, found in searches.items()
        },
    }


def train(problem: Problem, decided: Decided, setting: Setting, seed: int) -> dict[str, float]:
    """Seconds of the whole training by scheme."""
    job = problem.job
    total = num_iterations(setting, job.batch_size // job.samplers_per_trainer)
    rehearser = Rehearser(problem, num_iterations=setting.rehearsed, window=0, seed=seed + FRESH)
    seconds = {BOUND: total * decided.bound_s}
    for name, scheme in SCHEMES.items():
        policy = decided.policy if scheme.policy == AUTO else scheme.policy
        makespan_s = rehearser.makespan_s(decided.placements[scheme.placement], policy)
        seconds[name] = total * makespan_s / setting.rehearsed
    return seconds


def measure(
    name: str, setting: Setting, effort: Effort
) -> tuple[dict[str, dict[str, Times]], dict[str, Any]]:
    """Both figures of one setting: seconds by figure, by point, by scheme, by cluster.

    Placement comes before training, so Fig. 11 keeps what was decided at the profiled ratio.

    Returns:
        The figures, and notes on the search: the policies ours chose, ETP by cluster and beta.
    """
    figures: dict[str, dict[str, Times]] = {"batch_size": {}, "pmr": {}}
    policies: set[str] = set()
    searches: list[dict[str, Any]] = []

    def add(figure: str, point: float, seconds: dict[str, float]) -> None:
        times = figures[figure].setdefault(str(point), {})
        for scheme, value in seconds.items():
            times.setdefault(scheme, []).append(round(value, 2))

    for seed in range(effort.num_clusters):
        base = drawn(name, seed)
        for size in sorted({*effort.sizes, setting.seeds_per_sampler}):
            problem = at_batch_size(base, size)
            decided = decide(problem, seed, effort.betas)
            policies.add(decided.policy)
            seconds = train(problem, decided, setting, seed)
            add("batch_size", size, seconds)
            if size != setting.seeds_per_sampler:
                continue
            searches.append(describe_search(problem, decided, seed))
            for pmr in sorted({*effort.pmrs, setting.profiled_pmr}):
                if pmr == setting.profiled_pmr:
                    add("pmr", pmr, seconds)
                else:
                    add("pmr", pmr, train(with_pmr(problem, pmr), decided, setting, seed))
    return figures, {"our_policies": sorted(policies), "clusters": searches}


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one cluster, 2 points, no pictures")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--output", type=Path, help=f"JSON file; {RESULTS.name} unless quick")
    parser.add_argument("--images", type=Path, help="folder of the pictures; docs unless quick")
    parser.add_argument("--clusters", type=int, help="clusters per setting; 5 unless quick")
    parser.add_argument("--redraw", type=Path, help="draw a JSON file again, compute nothing")
    args = parser.parse_args()
    images = args.images or (None if args.quick else IMAGES)
    if args.redraw:
        draw_all(json.loads(args.redraw.read_text()), images or IMAGES)
        return 0
    began, cpu = time.perf_counter(), time.process_time()
    effort = QUICK if args.quick else Effort()
    if args.clusters:
        effort = replace(effort, num_clusters=args.clusters)
    results, searches, correlation, rehearsed = {}, {}, {}, {}
    for name, setting in SETTINGS.items():
        setting = replace(setting, rehearsed=setting.rehearsed // effort.shorten)
        results[name], searches[name] = measure(name, setting, effort)
        correlation[name] = rank_correlation(drawn(name, 0), effort.num_walked)
        rehearsed[name] = setting.rehearsed
        if not args.json:
            print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
    document: dict[str, Any] = {
        "settings": results,
        "gains": gain_table(results),
        "searches": searches,
        "rank_correlation": correlation,
        "rehearsed_iterations": rehearsed,
        "window": "unlimited",
        "num_clusters": effort.num_clusters,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": " ".join(["python benchmarks/paper_figures.py", *sys.argv[1:]]),
    }
    if not args.json:
        for figure in ("batch_size", "pmr"):
            print(f"\n{figure}\n{markdown(document['gains'], figure)}\n")
    output = args.output or (None if args.quick else RESULTS)
    if output:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(document, indent=1) + "\n")
    if images:
        draw_all(document, images)
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
