"""Measure how many events the simulator rehearses per second, on one core.

    python benchmarks/simulator.py --json
    python benchmarks/simulator.py --json --quick
    python benchmarks/simulator.py --output benchmarks/results/simulator.json

The last line is one JSON object. An event is the completion of a task or of a flow between
machines. Counted is the call of the compiled kernel alone, after compiling, the fastest of several.
A rehearsal has the example's number of iterations, or more, so that it takes at least 0.2 s;
placements are those of `colocate`. `events_per_s` is for a run-ahead window K = 2, beside it is
`events_per_s_unlimited` (not with `--quick`). `scale_1024_s` is one whole rehearsal of 1,024
machines, from the laid-out instance to the outcome, of `scale_1024_iterations` iterations: as
measured, never extrapolated, and null if not even one iteration ended in time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from headrace.api.documents.load import load_cluster, load_job, load_profile
from headrace.core.profile import Problem
from headrace.planner.methods import place
from headrace.simulator import Instance, Outcome, build_instance, rehearse

ROOT = Path(__file__).resolve().parents[1]
BEGAN_S = time.monotonic()
SETTINGS = ("testbed", "sim1", "sim2")
POLICIES = ("oes", "maxmin", "priority")
RUN_S = 0.2
"""A measured rehearsal takes at least this long."""

SCALE_POLICY = "oes"
"""The one policy whose events do not look at all ports; the others take hours at this size."""
SCALE_ITERATIONS = 20
SCALE_TIMEOUT_S = 1800.0
QUICK_S = 45.0
"""When `--quick` stops, counted from after the imports."""


@cache
def instance_of(setting: str) -> Instance:
    """A committed example, placed by `colocate`."""
    folder = ROOT / "examples" / setting
    cluster = load_cluster(folder / "cluster.yaml")
    job, profile = load_job(folder / "job.yaml"), load_profile(folder / "profile.yaml")
    problem = Problem(cluster, job, profile)
    instance, _ = build_instance(problem, place("colocate", problem))
    return instance


@contextmanager
def kernels_timed() -> Iterator[list[float]]:
    """Yield a list that grows by the seconds of every call of a compiled kernel."""
    seconds: list[float] = []

    def timed(kernel: Any) -> Any:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            result = kernel(*args)
            seconds.append(time.perf_counter() - start)
            return result

        return call

    kernels = {name: value for name, value in vars(rehearse).items() if name.startswith("run_")}
    vars(rehearse).update({name: timed(kernel) for name, kernel in kernels.items()})
    try:
        yield seconds
    finally:
        vars(rehearse).update(kernels)


def run(instance: Instance, policy: str) -> tuple[Outcome, float]:
    """One rehearsal, and the seconds its kernel took."""
    with kernels_timed() as seconds:
        outcome = rehearse.simulate(instance, policy)
    assert seconds, "the simulator called none of the kernels known here"
    return outcome, sum(seconds)


def measure(setting: str, policy: str, window: int, repetitions: int) -> dict[str, Any]:
    """Events per second of one setting; the fastest of some repetitions."""
    instance = replace(instance_of(setting), window=window)
    run(replace(instance, num_iterations=2), policy)  # compiles
    while True:
        runs = [run(instance, policy) for _ in range(repetitions)]
        outcome, best_s = min(runs, key=lambda each: each[1])
        if best_s >= RUN_S:
            return {
                "events_per_s": round(outcome.num_events / best_s),
                "iterations": instance.num_iterations,
                "events": outcome.num_events,
                "seconds": round(best_s, 4),
            }
        # A little more than needed: the next runs may be faster than these.
        factor = min(100.0, 1.3 * RUN_S / max(best_s, 1e-6))
        instance = replace(instance, num_iterations=math.ceil(factor * instance.num_iterations))


def measure_scale(num_iterations: int, budget_s: float) -> Iterator[dict[str, Any]]:
    """Rehearse 1,024 machines: one iteration first, then as many as are likely to end in time."""
    began = time.monotonic()
    instance = instance_of("scale1024")
    build_s = time.monotonic() - began
    run(replace(instance_of("testbed"), num_iterations=2), SCALE_POLICY)  # compiles
    num = 1
    while True:
        start = time.monotonic()
        outcome, kernel_s = run(replace(instance, num_iterations=num), SCALE_POLICY)
        seconds = time.monotonic() - start
        yield {
            "scale_1024_s": round(seconds, 2),
            "scale_1024_iterations": num,
            "scale_1024_kernel_s": round(kernel_s, 2),
            "scale_1024_build_s": round(build_s, 2),
            "scale_1024_events": outcome.num_events,
        }
        left_s = budget_s - (time.monotonic() - began)
        # Later iterations overlap and have more flows open at a time: leave room for twice as long.
        fitting = min(num_iterations, int(left_s / seconds / 2))
        if fitting <= num:
            return
        num = fitting


def scale_figures(num_iterations: int, timeout_s: float) -> dict[str, Any]:
    """What `measure_scale` found in a process of its own before the time was up."""
    command = [sys.executable, __file__, "--scale-worker"]
    command += [str(num_iterations), str(timeout_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as worker:
        try:
            text, _ = worker.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            worker.kill()
            text, _ = worker.communicate()
    figures: dict[str, Any] = {"scale_1024_s": None, "scale_1024_iterations": None}
    for line in text.splitlines():
        figures = json.loads(line)
    figures["scale_1024_policy"] = SCALE_POLICY
    found = figures["scale_1024_iterations"]
    if found != num_iterations:
        figures["scale_1024_note"] = (
            f"stopped after {timeout_s:.0f} s with {found or 'no'} of {num_iterations} iterations"
        )
    return figures


def use_one_core() -> None:
    """Stay on the last core this process may use, where the system lets one choose."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under 50 s")
    parser.add_argument("--repetitions", type=int, help="of which the fastest counts")
    parser.add_argument(
        "--scale-timeout", type=float, default=SCALE_TIMEOUT_S, help="seconds for 1,024 machines"
    )
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    parser.add_argument("--scale-worker", nargs=2, type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    use_one_core()
    if args.scale_worker:
        for figures in measure_scale(int(args.scale_worker[0]), args.scale_worker[1]):
            print(json.dumps(figures), flush=True)
        return 0

    repetitions = args.repetitions or (2 if args.quick else 7)
    windows = (
        {"events_per_s": 2} if args.quick else {"events_per_s": 2, "events_per_s_unlimited": 0}
    )
    document: dict[str, Any] = {name: {} for name in windows}
    runs: dict[str, Any] = {}
    for name, window in windows.items():
        for setting in SETTINGS:
            found = {each: measure(setting, each, window, repetitions) for each in POLICIES}
            document[name][setting] = {each: found[each]["events_per_s"] for each in POLICIES}
            runs[f"{setting}, K = {window or 'unlimited'}"] = found
            if not args.json:
                print(f"{setting}, K = {window or 'unlimited'}: {json.dumps(found)}", flush=True)
    timeout_s = args.scale_timeout
    if args.quick:
        timeout_s = min(timeout_s, QUICK_S - (time.monotonic() - BEGAN_S))
    document |= scale_figures(SCALE_ITERATIONS, max(timeout_s, 1.0))
    document |= {
        "runs": runs,
        "repetitions": repetitions,
        "counted": "the compiled kernel's call on one core; scale_1024_s: the whole rehearsal",
        "seconds": round(time.monotonic() - BEGAN_S, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/simulator.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
