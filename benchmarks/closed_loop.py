"""Plan, run and compare on a shaped testbed: three ways to place and share, predicted and measured.

    python benchmarks/closed_loop.py --json --output benchmarks/results/closed_loop.json
    python benchmarks/closed_loop.py --json --only b-ps --repetitions 3 --output FILE
    python benchmarks/closed_loop.py --quick --json

Needs root, iproute2, iperf3 and `headrace[shape]`. The settings are in `benchmarks/shaped-a` (the
shape of DGTP's testbed) and `benchmarks/shaped-b` (six machines drawn as in its section VI-B, the
first seed), each with a parameter server and with a ring. A short run measures a profile; from it
come the plans of `distdgl` (its placement, the system's queues), `dgtp` (the paper's search with
the best beta, shares of `oes`) and `ours` (annealing, the best policy). They run one after the
other, all of them once in each repetition. `--quick` is one mode on two machines, once, planned
without a profile: it shows that everything works, not what it is worth. What it leaves out is null:
DGTP's run, and the last two keys.

The last line is one JSON object:

- `modes`: for each setting and mode `iteration_s` (median of repetitions) and `predicted_s` of
  each configuration, `predicted_over_measured`, `to_accuracy_s`, `gain` of ours (1 - ours over
  theirs, measured and predicted), `ranking_errors` (pairs further apart than 5 % that the
  prediction has in the wrong order), `goodput_over_iperf` of the busiest card (bytes over the
  cable, with headers and repeated packets, over those of iperf3 from the slowest card to the
  fastest), `cpu_share` of all cores, `traffic_cpu_share` of each configuration (CPU seconds of
  traffic control over time, with its start, in which connections are looked for) and
  `agents_cpu_share` (of its agents alone, in steady state);
- `drift`: a card is halved in mid-run (`benchmarks/shaped-drift`): seconds from there to the end
  with planning anew and without, and what was decided when;
- `policy_shares`: see `traffic_shares.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.closed_loop_runs import (
    CONFIGS,
    CORES,
    GRAPH,
    LAST,
    ROOT,
    SKIP,
    Setting,
    Trainings,
    log,
)
from benchmarks.machine import describe_machine
from headrace.api.documents.load import save_plan
from headrace.api.graph import partition
from headrace.api.profile import save_profile
from headrace.testbed import Testbed, take_down

MODES = ("a-ps", "a-ring", "b-ps", "b-ring")
STEPS, PROFILE_STEPS = 45, 40
QUICK_GRAPH = "generated:nodes=2e4,edges=2e5,features=128"
QUICK_STEPS, QUICK_SKIP, QUICK_LAST, QUICK_IPERF_S = 16, 4, 2, 1.0
QUICK_CONFIGS = ("distdgl", "ours")
IPERF_S = 5.0
DRIFT_STEPS, SLOW_AT = 220, 30
ACCURACY = 0.5
NOTABLE = 0.05

Runs = dict[str, list[dict[str, Any]]]
"""What the runs of each configuration showed."""


def measure(mode: str, scratch: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Profile, plan and run one mode of a setting."""
    name, sync = mode.split("-")
    setting = Setting.of(name, sync)
    graph = scratch / f"graph-{setting.cluster.num_machines}"
    if not graph.exists():
        partition(QUICK_GRAPH if args.quick else GRAPH, graph, setting.cluster.num_machines)
    steps = QUICK_STEPS if args.quick else args.steps
    (scratch / mode).mkdir(parents=True, exist_ok=True)
    bed_name = f"loop-{os.getpid()}"
    bed = Testbed.up(setting.cluster, bed_name, log=log, shaped=True, cores=CORES[name])
    try:
        skip, last = (QUICK_SKIP, QUICK_LAST) if args.quick else (SKIP, LAST)
        trainings = Trainings(bed, setting, graph, scratch / mode, ACCURACY, skip, last)
        fastest = max(setting.cluster.hosts, key=lambda machine: machine.nic_in)
        slowest = min(setting.cluster.hosts, key=lambda machine: machine.nic_in)
        iperf_s = QUICK_IPERF_S if args.quick else IPERF_S
        iperf = trainings.iperf_bytes_per_s(slowest.name, fastest.name, iperf_s)
        profile = None
        if not args.quick:
            profile = trainings.profile(PROFILE_STEPS)
            save_profile(profile, scratch / mode / "profile.yaml")
        plans = {config: setting.plan(profile, config) for config in CONFIGS}
        configs = QUICK_CONFIGS if args.quick else tuple(CONFIGS)
        runs: Runs = {config: [] for config in CONFIGS}
        for repetition in range(1 if args.quick else args.repetitions):
            for config in configs:
                made = plans[config]
                save_plan(made, scratch / mode / f"plan-{config}.json")
                found = trainings.run(f"{config}-{repetition}", made, config, steps)
                runs[config].append(found)
                log(f"{mode} {config}: {found['measured_s'] * 1e3:.0f} ms, {found}")
    finally:
        take_down(bed_name)
    predicted = {
        config: made.predicted.iteration_time_s
        for config, made in plans.items()
        if made.predicted is not None
    }
    return {
        **summary(runs, predicted),
        "policies": {config: made.policy for config, made in plans.items()},
        "iperf_over_rate": iperf / slowest.nic_out,
        "goodput_over_iperf": _of_each(
            runs, lambda run: run["goodput"]["share"] * slowest.nic_out / iperf
        ),
        "busiest": {config: all_[0]["goodput"] if all_ else None for config, all_ in runs.items()},
        "cpu_share": max(each["cpu_share"] for all_ in runs.values() for each in all_),
        "traffic_cpu_share": _of_each(runs, lambda run: run["traffic_cpu_share"]),
        "agents_cpu_share": _of_each(runs, lambda run: run["agents_cpu_share"]),
        "steps": steps,
    }


def summary(runs: Runs, predicted_s: dict[str, float]) -> dict[str, Any]:
    """Prediction beside measurement."""
    measured_s = _of_each(runs, lambda run: run["measured_s"])
    ran = [config for config in runs if runs[config]]
    gain = {
        theirs: {
            "measured": _saved(measured_s["ours"], measured_s[theirs]),
            "predicted": _saved(predicted_s["ours"], predicted_s[theirs]),
        }
        for theirs in runs
        if theirs != "ours"
    }
    wrong = [
        [one, other]
        for one, other in combinations(ran, 2)
        if abs(measured_s[one] / measured_s[other] - 1) > NOTABLE
        and (measured_s[one] < measured_s[other]) != (predicted_s[one] < predicted_s[other])
    ]
    return {
        "iteration_s": measured_s,
        "iteration_s_all": {
            config: [each["measured_s"] for each in found] for config, found in runs.items()
        },
        "predicted_s": predicted_s,
        "predicted_over_measured": {
            config: None if took_s is None else predicted_s[config] / took_s
            for config, took_s in measured_s.items()
        },
        "to_accuracy_s": _of_each(runs, lambda run: run["to_accuracy_s"]),
        "gain": gain,
        "ranking_errors": wrong,
    }


def _of_each(runs: Runs, figure: Callable[[dict[str, Any]], float | None]) -> dict[str, Any]:
    """Median of a figure over the runs of each configuration; none where there is none."""
    found = {
        config: [value for each in all_ if (value := figure(each)) is not None]
        for config, all_ in runs.items()
    }
    return {config: median(values) if values else None for config, values in found.items()}


def _saved(ours_s: float, theirs_s: float | None) -> float | None:
    return None if theirs_s is None else 1 - ours_s / theirs_s


def drift(scratch: Path) -> dict[str, Any]:
    """A card is halved in the middle of a run: with planning anew and without."""
    setting = Setting.of("drift", "ring")
    graph = scratch / f"graph-{setting.cluster.num_machines}"
    if not graph.exists():
        partition(GRAPH, graph, setting.cluster.num_machines)
    bed_name = f"loop-{os.getpid()}"
    bed = Testbed.up(setting.cluster, bed_name, log=log, shaped=True, cores=CORES["drift"])
    try:
        trainings = Trainings(bed, setting, graph, scratch / "drift", ACCURACY)
        made = setting.plan(trainings.profile(PROFILE_STEPS), "ours")
        found: dict[str, Any] = {}
        for name, replan in (("without", False), ("with", True)):
            found[name] = trainings.drift(name, made, DRIFT_STEPS, SLOW_AT, replan)
            log(f"drift {name}: {found[name]}")
    finally:
        take_down(bed_name)
    without_s, with_s = (found[name]["since_slow_s"] for name in ("without", "with"))
    return {**found, "gain": 1 - with_s / without_s, "steps": DRIFT_STEPS, "slow_at": SLOW_AT}


def policy_shares(is_quick: bool) -> Any:
    """Whether flows get the shares they are given."""
    words = [sys.executable, str(ROOT / "benchmarks" / "traffic_shares.py"), "--json"]
    words += ["--quick"] if is_quick else []
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--quick", action="store_true", help="one mode, one repetition")
    parser.add_argument("--only", help=f"of {','.join(MODES)}, drift, shares, by commas")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of each run ({STEPS})")
    parser.add_argument("--scratch", type=Path, help="folder for graphs and runs, kept")
    parser.add_argument("--output", type=Path, help="result file to write, or to add to")
    args = parser.parse_args()
    if shutil.which("iperf3") is None:
        raise SystemExit("iperf3 is not installed: apt-get install iperf3")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the testbed down
    begin_s = time.monotonic()
    scratch = args.scratch or Path(tempfile.mkdtemp(prefix="headrace-loop-"))
    found: dict[str, Any] = {"modes": {}, "drift": None, "policy_shares": None}
    if args.output is not None and args.output.exists():
        found = json.loads(args.output.read_text())
    default = ("quick-ring",) if args.quick else (*MODES, "drift", "shares")
    try:
        for stage in args.only.split(",") if args.only else default:
            if stage == "shares":
                found["policy_shares"] = policy_shares(args.quick)
            elif stage == "drift":
                found["drift"] = drift(scratch)
            else:
                found["modes"][stage] = measure(stage, scratch, args)
            found |= {
                "benchmark": "closed_loop",
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "command": "python benchmarks/closed_loop.py " + " ".join(sys.argv[1:]),
                "machine": describe_machine(),
                "is_quick": args.quick,
                "elapsed_s": round(time.monotonic() - begin_s, 1),
            }
            if args.output is not None:
                args.output.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        if args.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(found) if args.json else json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
