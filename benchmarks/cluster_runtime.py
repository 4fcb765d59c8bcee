"""Run plans on an emulated cluster of four machines: places, bytes, start, costs, predictions.

Needs root and iproute2. The last line is one JSON object; times are seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cluster_checks import (
    accuracy,
    idle_workers_share,
    names_on_this_machine,
    recording_cost_s,
)
from benchmarks.machine import describe_machine
from headrace.api.graph import partition
from headrace.api.profile import compare, profile_trace
from headrace.testbed import Testbed, take_down
from tests.support.cluster_bed import (
    Layout,
    Run,
    make_cluster,
    make_plan,
    processes,
    trace_of,
)
from tests.support.cluster_checks import (
    bytes_by_machine,
    gradient_difference,
    is_placed,
    left_over,
    origin_s,
    snapshot,
)

STAGES = ("start", "gradients", "steady", "predictions", "accuracy", "clean")
SMALL = "generated:nodes=1e4,edges=1e5,features=128"
LARGE = "generated:nodes=1e7,edges=1.6e8,features=128"
MIDDLE = "generated:nodes=1e5,edges=2e6,features=128"
MODEL = {"features": 128, "classes": 16, "width": 32, "fanouts": [10, 5]}
ONLY_IN_FULL = (
    "start_all_s",
    "large_graph_adds_s",
    "gradient_difference",
    "predictions",
    "accuracy",
    "interrupts",
    "ups_and_downs",
    "left_by_testbeds",
)
NAME = "benchmark"
NUM_TASKS = 13
UNEQUAL = (1, 2, 3, 4, 5, 6)
LAYOUTS = {
    "spread": Layout(),
    "together": Layout(samplers=("m0", "m0", "m1", "m1", "m2", "m2")),
    "apart": Layout(samplers=("m3", "m3", "m3", "m3", "m3", "m3")),
}


class Bench:
    """What is measured, in one testbed."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.found: dict[str, Any] = {}
        self.bed = Testbed.up(make_cluster(), NAME, log=self.log)
        self._num_runs = 0
        self._idle_share = 0.0

    def log(self, line: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)

    def graph(self, name: str, text: str) -> Path:
        folder = self.scratch / f"graph-{name}"
        if not folder.exists():
            self.log(f"making graph {name}: {text}")
            partition(text, folder, 4, method="range" if name == "large" else "auto")
        return folder

    def run(self, layout: Layout, graph: Path, batch_size: int, config: dict[str, Any]) -> Run:
        self._num_runs += 1
        folder = self.scratch / f"run-{self._num_runs}"
        shutil.rmtree(folder, ignore_errors=True)
        return Run(self.bed, make_plan(layout, batch_size), graph, folder, {**MODEL, **config})

    # --- stages -----------------------------------------------------------------------------------

    def start(self) -> None:
        """From the command to the first batch of the last trainer, and what takes how long."""
        took: dict[str, list[dict[str, float]]] = {}
        graphs = {"small": self.graph("small", SMALL), "large": self.graph("large", LARGE)}
        # Kernels are compiled once per machine, not in every start.
        self.run(Layout(), graphs["small"], 12, {"task": "steps", "steps": 3}).end()
        for name in [name for _ in range(3) for name in graphs]:
            run = self.run(Layout(), graphs[name], 12, {"task": "steps", "steps": 20})
            folder = run.end()
            took.setdefault(name, []).append(_start_of(run, folder, trace_of(folder)))
            self.log(f"start with graph {name}: {took[name][-1]}")
        firsts = {name: [each["first_batch_s"] for each in all_] for name, all_ in took.items()}
        self.found["start_to_first_batch_s"] = statistics.median(firsts["small"])
        self.found["start_breakdown_s"] = took["small"][0]
        self.found["start_all_s"] = firsts
        self.found["large_graph_adds_s"] = statistics.median(firsts["large"]) - statistics.median(
            firsts["small"]
        )

    def gradients(self) -> None:
        """Gradients of three trainers beside those of one process."""
        graph = self.graph("small", SMALL)
        found = {}
        for name, layout in {"equal": Layout(), "unequal": Layout(seeds=UNEQUAL)}.items():
            config = {"task": "gradients", "epochs": 1, "width": 8}
            run = self.run(layout, graph, 256, config)
            found[name] = gradient_difference(run.end(), graph, {**MODEL, **config})
        self.found["gradient_difference"] = found

    def steady(self) -> None:
        """Long run: where tasks are, bytes on links, control's CPU, memory, waiting."""
        graph = self.graph("middle", MIDDLE)
        self._idle_share = idle_workers_share(self.bed, NUM_TASKS)
        self._watch(self.run(LAYOUTS["together"], graph, 192, {"task": "steps", "steps": 2100}))

    def quick(self) -> None:
        """One start, of which everything is taken that one start can show.

        Idle workers of Ray are not measured here.
        """
        graph = self.graph("small", SMALL)
        run = self.run(LAYOUTS["together"], graph, 192, {"task": "steps", "steps": 100})
        folder = self._watch(run, 20, 80)
        trace = trace_of(folder)
        start = _start_of(run, folder, trace)
        self.found["start_to_first_batch_s"] = start["first_batch_s"]
        self.found["start_breakdown_s"] = start
        outlook = compare(trace, run.plan, profile_trace(trace, run.plan))
        self.found["predicted_over_measured"] = {"together": outlook.ratio}
        self.found["left_by_interrupts"] = left_over(self.bed)
        self.found |= dict.fromkeys(ONLY_IN_FULL)

    def _watch(self, run: Run, early: int = 200, late: int = 2000) -> Path:
        """Look at a run in its middle, then take it apart."""
        run.wait_for_iteration(early)
        first = snapshot(self.bed, processes(self.bed))
        run.wait_for_iteration(late)
        last = snapshot(self.bed, processes(self.bed))
        status = run.status()
        folder = run.end()
        trace = trace_of(folder)
        passed_s = last.at_s - first.at_s
        both = first.seen.keys() & last.seen.keys()
        memory = {
            kind: _sum(last, both, kind) / max(_sum(first, both, kind), 1)
            for kind in sorted({first.seen[pid].kind for pid in both})
        }
        used_s = {
            kind: sum(
                last.seen[pid].cpu_s - first.seen[pid].cpu_s
                for pid in both
                if first.seen[pid].kind == kind
            )
            for kind in ("actor", "driver")
        }
        num_steps = last_iteration(trace, folder, last.at_s)
        num_steps -= last_iteration(trace, folder, first.at_s)
        iteration_s = passed_s / max(num_steps, 1)
        tracing_s = recording_cost_s(6, 3, 3)
        share = {kind: seconds / passed_s for kind, seconds in used_s.items()}
        tracing_share = tracing_s / iteration_s
        self.found["overhead_share"] = share["actor"] + share["driver"] + tracing_share
        # Ray's threads in as many workers that do nothing: what any program on Ray pays.
        self.found["overhead_share_beyond_idle_ray"] = (
            self.found["overhead_share"] - self._idle_share if self._idle_share else None
        )
        self.found["overhead"] = {
            "driver_cpu_share": share["driver"],
            "shells_cpu_share": share["actor"],
            "tracing_share": tracing_share,
            "idle_ray_workers_cpu_share": self._idle_share or None,
            "tracing_cpu_s_per_iteration": tracing_s,
            "iteration_s": iteration_s,
            "window_s": passed_s,
        }
        everything = sum(first.seen[pid].own_bytes for pid in both)
        self.found["memory_growth"] = sum(last.seen[pid].own_bytes for pid in both) / everything
        self.found["memory_growth_by_kind"] = memory
        self.found["idle_share"] = status.get("idle_share")
        self.found["waits_for"] = status.get("waits_for")
        self.found["placed_as_planned"] = is_placed(run, folder)
        links = bytes_by_machine(trace, folder, first, last)
        self.found["link_bytes"] = links
        self.found["link_bytes_error"] = max(
            abs(each["traced"] / each["counted"] - 1) for each in links.values()
        )
        return folder

    def predictions(self) -> None:
        """Predicted over measured time per iteration, by the profile of the first layout."""
        graph = self.graph("middle", MIDDLE)
        found: dict[str, Any] = {}
        profile = None
        for name, layout in LAYOUTS.items():
            run = self.run(layout, graph, 192, {"task": "steps", "steps": 150})
            trace = trace_of(run.end())
            own = profile_trace(trace, run.plan)
            profile = profile or own
            found[name] = {
                "by_own_profile": compare(trace, run.plan, own).summary(),
                "by_first_profile": compare(trace, run.plan, profile).summary(),
            }
        self.found["predictions"] = found
        self.found["predicted_over_measured"] = {
            name: each["by_first_profile"]["predicted_over_measured"]
            for name, each in found.items()
        }

    def accuracy(self) -> None:
        """Points of three trainers and of one process, on real graphs."""
        names = ("pubmed", "amazon_photo")
        self.found["accuracy"] = {name: accuracy(self, name, 10) for name in names}

    def clean(self) -> None:
        """Testbeds that come and go, runs that are interrupted: what they leave."""
        rounds, cuts = 20, 10
        left: list[str] = []
        draw = random.Random(0)
        graph = self.graph("small", SMALL)
        for number in range(cuts):
            after_s = draw.uniform(0.5, 30.0)
            run = self.run(Layout(), graph, 12, {"task": "steps", "steps": 10**6})
            time.sleep(after_s)
            run.interrupt()
            asked_s = time.monotonic()
            run.process.wait(60)
            run.log.close()
            left += left_over(self.bed)
            took_s = time.monotonic() - asked_s
            self.log(f"Ctrl-C {number} after {after_s:.1f} s: ended within {took_s:.1f} s")
        self.found["interrupts"] = cuts
        self.found["left_by_interrupts"] = left
        self.bed.down()
        before = names_on_this_machine()
        for number in range(rounds):
            began_s = time.monotonic()
            Testbed.up(make_cluster(), f"{NAME}-{number}").down()
            self.log(f"up and down {number}: {time.monotonic() - began_s:.1f} s")
        self.found["ups_and_downs"] = rounds
        self.found["left_by_testbeds"] = sorted(names_on_this_machine() - before)


def _sum(seen: Any, pids: Any, kind: str) -> int:
    return sum(seen.seen[pid].own_bytes for pid in pids if seen.seen[pid].kind == kind)


def _start_of(run: Run, folder: Path, trace: Any) -> dict[str, float]:
    """When each phase began after the command, and when every trainer had its first batch."""
    summary = json.loads((folder / "figures.json").read_text())
    roles = np.array(trace.task_roles)[trace.executions.task]
    starts = trace.executions.start_s[(roles == "trainer") & (trace.executions.iteration == 0)]
    found = {name: round(at, 2) for name, at in summary["phases_s"].items()}
    found["first_batch_s"] = round(float(starts.max()) + origin_s(trace, folder) - run.began_s, 2)
    return found


def last_iteration(trace: Any, folder: Path, at_s: float) -> int:
    """The newest iteration that a trainer had begun at some time of the driver's clock."""
    roles = np.array(trace.task_roles)[trace.executions.task]
    is_trainer = roles == "trainer"
    began_s = trace.executions.start_s[is_trainer] + origin_s(trace, folder)
    return int(trace.executions.iteration[is_trainer][began_s <= at_s].max(initial=0))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument(
        "--quick", action="store_true", help="what one start can show; other keys are null"
    )
    parser.add_argument("--only", help=f"of {','.join(STAGES)}, by commas")
    parser.add_argument("--scratch", type=Path, help="folder for graphs, kept")
    parser.add_argument("--output", type=Path, help="result file to write, or to add to")
    args = parser.parse_args()
    scratch = args.scratch or Path(tempfile.mkdtemp(prefix="headrace-benchmark-"))
    wanted = args.only.split(",") if args.only else ("quick",) if args.quick else STAGES
    take_down(NAME)
    bench = Bench(scratch)
    try:
        for stage in wanted:
            bench.log(f"stage {stage}")
            method: Callable[[], None] = getattr(bench, stage)
            method()
    finally:
        take_down(NAME)
        if args.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    found: dict[str, Any] = {
        "benchmark": "cluster_runtime",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/cluster_runtime.py --json" + " --quick" * args.quick,
        "machine": describe_machine(),
        "is_quick": args.quick,
    }
    if args.output is not None and args.output.exists():
        found = {**json.loads(args.output.read_text()), **found}
    found |= bench.found
    if args.output is not None:
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if args.json else json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
