"""A machine's CPU quota is halved during a run: with and without planning again.

Needs root and iproute2. Three machines with equal quotas have room for one trainer each; two
trainers run. A profile is measured, and its plan runs twice. During each run the quota of the first
trainer's machine is halved.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.graph_checks import DATA
from benchmarks.shares_testbed import CONFIG, CORES, GRAPH, PROFILED, make_job
from headrace.core.cluster import Cluster, Machine
from headrace.core.plan import Plan

STEPS, SLOW_AT = 700, 100


def make_cluster() -> Cluster:
    """Machines that host at most one trainer each."""
    return Cluster(
        machines=tuple(
            Machine(
                name=f"m{number}",
                resources={"cpu": 4, "gpu": 1, "memory": 8e9},
                nic_in=1.25e9,
                nic_out=1.25e9,
            )
            for number in range(3)
        )
    )


def run_drift() -> dict[str, Any]:
    """Seconds from the change to the end of the run."""
    from headrace.api.graph import partition
    from headrace.api.plan import plan
    from headrace.profiling import profile_trace
    from headrace.testbed import Testbed, take_down
    from tests.support.cluster_bed import Run, trace_of

    cluster = make_cluster()
    job = make_job("slow-cpu")
    bed_name = f"slow-cpu-{os.getpid()}"
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        partition(str(DATA / GRAPH), scratch / "graph", 3)
        bed = Testbed.up(cluster, bed_name, shaped=True, cores=CORES)
        try:
            first = plan(cluster, job, method="colocate", policy="maxmin", seed_mix="uniform")
            config = {**CONFIG, "task": "steps", "steps": PROFILED}
            profiled = Run(bed, first, scratch / "graph", scratch / "profile", config)
            profile = profile_trace(trace_of(profiled.end()), first)
            job = job.model_copy(update={"model_bytes": profile.model_bytes})
            made = plan(cluster, job, profile, policy="maxmin", seed_mix="uniform")
            found = {
                name: _train(bed, made, scratch, name, options)
                for name, options in (("kept", ()), ("replanned", ("--replan",)))
            }
        finally:
            take_down(bed_name)
    kept_s, replanned_s = (found[name]["since_slow_s"] for name in ("kept", "replanned"))
    return {
        **found,
        "trainers": list(made.placement.trainers),
        "predicted_iteration_s": made.time_s,
        "saved_s": kept_s - replanned_s,
        "saved": 1 - replanned_s / kept_s,
    }


def _train(
    bed: Any, made: Plan, scratch: Path, name: str, options: tuple[str, ...]
) -> dict[str, Any]:
    """Train in epochs; halve the CPU quota of the first trainer's machine on the way."""
    from headrace.testbed import cgroups
    from tests.support.cluster_bed import Run

    host = bed.layout.host(made.placement.trainers[0])
    cgroups.limit(host.cgroup, host.limits.cores)
    config = {**CONFIG, "task": "epochs", "steps": STEPS}
    options = ("--traffic", "none", "--checkpoint-every", "50", *options)
    run = Run(bed, made, scratch / "graph", scratch / name, config, options)
    run.wait_for_iteration(SLOW_AT)
    cgroups.limit(host.cgroup, host.limits.cores / 2)
    slowed_s, slowed_at_s = time.monotonic(), time.time()
    done = run.end()
    since_slow_s = time.monotonic() - slowed_s
    events = [json.loads(line) for line in (done / "events.jsonl").read_text().splitlines()]
    decided = [each for each in events if each["kind"] == "drift"]
    taken = [each for each in decided if each.get("what") == "replan"]
    return {
        "since_slow_s": since_slow_s,
        "until_replanned_s": taken[0]["at_s"] - slowed_at_s if taken else None,
        "decisions": decided,
    }


if __name__ == "__main__":
    print(json.dumps(run_drift()))
