"""Batch shares on a testbed whose machines have CPU quotas of 1:2: time per epoch and accuracy.

Needs root and iproute2. A first plan is profiled at three batch sizes. Then the same job runs with
equal shares and with the planner's shares, `ROUNDS` times in turn. Each run trains one model per
random seed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

from benchmarks.graph_checks import DATA
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.core.plan import Plan

SPEEDS = {"fast": 4.0, "slow": 2.0}
CORES = 1.8
GRAPH = "amazon_computers"
ROUNDS, SEEDS, EPOCHS = 1, 5, 8
PROFILED = 40
CONFIG = {"features": 767, "classes": 10, "width": 64, "fanouts": [5, 5]}


def make_cluster() -> Cluster:
    """A fast and a slow machine that host a trainer each."""
    return Cluster(
        machines=tuple(
            Machine(
                name=f"m{number}",
                kind=kind,
                resources={"cpu": cores, "gpu": 1, "memory": 8e9},
                nic_in=1.25e9,
                nic_out=1.25e9,
            )
            for number, (kind, cores) in enumerate(SPEEDS.items())
        )
    )


def make_job(name: str) -> Job:
    """Two trainers that need a GPU each, so that a machine hosts one of them."""
    return Job(
        name=name,
        trainers=2,
        batch_size=128,
        demands={Role.TRAINER: {"gpu": 1, "cpu": 1}, Role.SAMPLER: {"cpu": 0.5}},
    )


def run_real() -> dict[str, Any]:
    """Measure both kinds of shares."""
    from headrace.api.graph import partition
    from headrace.api.plan import plan
    from headrace.profiling import measured_iteration_time_s, profile_trace
    from headrace.testbed import Testbed, take_down
    from tests.support.cluster_bed import Run, trace_of

    cluster = make_cluster()
    job = make_job("shares")
    bed_name = f"shares-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        partition(str(DATA / GRAPH), scratch / "graph", 2)
        # Ray's node needs a GPU to exist in the file only: trainers compute on the CPU.
        bed = Testbed.up(cluster, bed_name, shaped=True, cores=CORES)

        def run(made: Plan, name: str, options: tuple[str, ...], **config: Any) -> Path:
            wanted = {**CONFIG, **config}
            each = Run(bed, made, scratch / "graph", scratch / name, wanted, options)
            return each.end()

        try:
            first = plan(cluster, job, method="colocate", policy="maxmin", seed_mix="uniform")
            profiled = _profiled(bed, first, scratch)
            profile = profile_trace(profiled, first)
            plans = {
                "equal": plan(cluster, job, profile, policy="maxmin", shares="equal"),
                "ours": plan(cluster, job, profile, policy="maxmin"),
            }
            times_s: dict[str, list[float]] = {name: [] for name in plans}
            points: dict[str, list[float]] = {name: [] for name in plans}
            for number in range(ROUNDS):
                for name, made in plans.items():
                    settings = {"task": "points", "seeds": SEEDS, "epochs": EPOCHS}
                    done = run(made, f"{name}-{number}", ("--checkpoint-every", "0"), **settings)
                    times_s[name].append(measured_iteration_time_s(trace_of(done)))
                    lines = (done / "reports.jsonl").read_text().splitlines()
                    points[name] = [json.loads(line)["figures"]["points"] for line in lines]
        finally:
            take_down(bed_name)
    return _summary(plans, times_s, points)


def _profiled(bed: Any, first: Plan, scratch: Path) -> Any:
    """Trace of a profiling run with several batch sizes."""
    from headrace.api.documents.load import save_plan
    from tests.support.cluster_bed import SCRIPT, trace_of

    path, settings = scratch / "first.json", scratch / "config.yaml"
    save_plan(first, path)
    settings.write_text(json.dumps({**CONFIG, "task": "steps", "steps": 10**6}))
    words = [sys.executable, "-m", "headrace", "profile", "--plan", str(path), "--json"]
    words += ["--graph", str(scratch / "graph"), "--runs", str(scratch / "runs")]
    words += ["--config", str(settings), "--iterations", str(PROFILED)]
    words += ["--output", str(scratch / "profile.yaml"), str(SCRIPT)]
    done = subprocess.run(bed.command("m0", words), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"profiling ended with {done.returncode}: {done.stderr[-2000:]}")
    return trace_of(Path(json.loads(done.stdout.splitlines()[-1])["trace"]).parent)


def _summary(
    plans: dict[str, Plan], times_s: dict[str, list[float]], points: dict[str, list[float]]
) -> dict[str, Any]:
    measured_s = {name: median(each) for name, each in times_s.items()}
    errors = [stdev(each) / len(each) ** 0.5 for each in points.values()]
    allowed = max(0.5, 2 * sum(error**2 for error in errors) ** 0.5)
    difference = mean(points["ours"]) - mean(points["equal"])
    return {
        "shares": None if plans["ours"].shares is None else list(plans["ours"].shares),
        "trainers": list(plans["ours"].placement.trainers),
        "predicted_saved": 1 - plans["ours"].time_s / plans["equal"].time_s,
        "saved": 1 - measured_s["ours"] / measured_s["equal"],
        "iteration_s": times_s,
        "points": points,
        "points_difference": difference,
        "points_allowed": allowed,
        "is_same_accuracy": abs(difference) <= allowed,
    }


if __name__ == "__main__":
    print(json.dumps(run_real()))
