"""Train for keeps: parameter servers, what checkpoints cost, recovery, inference, observability.

    python benchmarks/training_for_keeps.py --json --scratch DIR --output FILE
    python benchmarks/training_for_keeps.py --quick --json

Needs root and iproute2: runs are those of an emulated cluster of four machines. `--quick` shows
what one start can show; all other keys are null. The last line is one JSON object:

- `gradient_difference`: the largest difference of three trainers' gradients with so many parameter
  servers to those of one process with plain PyG; `ring_difference`: that of the parameters at the
  end to those of a ring;
- `checkpoint`: `cost_share` is the time in which checkpoints every 100 steps held up the training,
  and in which their writing computed, over the time of the same steps (`checkpoint_cost.py`);
- `checkpoint_cuts`: a checkpoint's files cut at so many bytes, and how many of those were loaded;
- `recovery_s`: from a kill to the end of the longest pause between steps after it, for every kill
  of a sampler, and of a store of the graph with 10 million nodes;
- `faults`: the summary of the campaign's result file (`faults.py`), and of its network cuts;
- `inference`: see `inference_speed.py`;
- `checks`: whether a real Prometheus agrees with the trace and trackers' files are read back
  (`prometheus`), whether every port refuses strangers as documented (`ports`): the tests of that.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import checkpoint_cost, inference_speed
from benchmarks.machine import describe_machine
from headrace.api.graph import partition
from headrace.testbed import Testbed, take_down
from headrace.training.checkpoint_files import newest_whole
from tests.support.cluster_bed import ROOT, Layout, Run, events, make_cluster, make_plan
from tests.support.cluster_checks import gradient_difference, left_over
from tests.support.fault_victims import victims
from tests.support.fault_watch import recovery_s, step_ends

STAGES = ("servers", "checkpoints", "samplers", "stores", "inference", "campaign", "checks")
GRAPHS = {
    "tiny": "generated:nodes=4e3,edges=4e4,features=64",
    "small": "generated:nodes=1e4,edges=1e5,features=64",
    "middle": checkpoint_cost.GRAPH,
    "large": "generated:nodes=1e7,edges=1.6e8,features=128",
}
GRADIENTS = {
    "task": "gradients", "epochs": 1, "by_steps": True,
    "features": 64, "classes": 16, "width": 8, "fanouts": [10, 5],
}  # fmt: skip
STEPS = {"task": "steps", "features": 64, "classes": 16, "width": 32, "fanouts": [10, 5]}
SERVERS: dict[str, tuple[str, ...]] = {"1": ("m3",), "2": ("m0", "m3")}
FEW = Layout(trainers=("m1", "m2"), samplers=("m3", "m2"), servers=SERVERS["2"])
SEEDS = (1, 2, 3, 4, 5, 6)
CHECKS = {"prometheus": "test_observability.py", "ports": "test_ports.py"}
CAMPAIGN = ROOT / "benchmarks" / "results" / "faults.json"
CUTS = 400


class Bench:
    """What is measured; runs are those of one testbed."""

    def __init__(self, bed: Testbed, scratch: Path, args: argparse.Namespace) -> None:
        self.bed, self.scratch, self._args = bed, scratch, args
        self.found: dict[str, Any] = {
            "gradient_difference": dict.fromkeys(SERVERS),
            "ring_difference": dict.fromkeys(SERVERS),
            "checkpoint": None,
            "checkpoint_cuts": None,
            "recovery_s": {"sampler": None, "store": None},
            "faults": None,
            "inference": None,
            "checks": dict.fromkeys(CHECKS),
        }

    def graph(self, name: str) -> Path:
        folder = self.scratch / f"graph-{name}"
        if not folder.exists():
            log(f"making graph {name}: {GRAPHS[name]}")
            partition(GRAPHS[name], folder, 4, method="range" if name == "large" else "auto")
        return folder

    def run(
        self,
        name: str,
        layout: Layout,
        graph: Path,
        batch_size: int,
        config: dict[str, Any],
        *options: str,
    ) -> Run:
        folder = self.scratch / f"run-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        return Run(self.bed, make_plan(layout, batch_size), graph, folder, config, options)

    # --- stages -----------------------------------------------------------------------------------

    def quick(self) -> None:
        """One start: gradients with two servers, although a sampler is killed meanwhile."""
        graph, config = self.graph("tiny"), {**GRADIENTS, "pause_s": 0.2}
        run = self.run("quick", FEW, graph, 12, config, "--checkpoint-every", "10")
        folder, recovered_s = disturbed(run, "sampler", [4])
        self.found["recovery_s"]["sampler"] = recovered_s
        self.found["gradient_difference"]["2"] = gradient_difference(folder, graph, GRADIENTS)
        made = events(folder, "checkpoint")
        stall_s = max(event["stall_s"] for event in made)
        keys = checkpoint_cost.cost_of(folder)
        self.found["checkpoint"] = {
            **dict.fromkeys([*keys, "step_without_s"]),
            "num_checkpoints": len(made),
            "stall_s": stall_s,
        }
        self.found["checkpoint_cuts"] = cuts(folder / "checkpoints", self.scratch / "cuts", 50)
        self.campaign()

    def servers(self) -> None:
        """Gradients with one and two parameter servers, and what they end with."""
        graph = self.graph("small")
        ring = self.run("ring", Layout(seeds=SEEDS), graph, 64, GRADIENTS).end()
        for name, places in SERVERS.items():
            layout = Layout(servers=places, seeds=SEEDS)
            folder = self.run(f"servers-{name}", layout, graph, 64, GRADIENTS).end()
            difference = gradient_difference(folder, graph, GRADIENTS)
            self.found["gradient_difference"][name] = difference
            pairs = zip(parameters(folder), parameters(ring), strict=True)
            self.found["ring_difference"][name] = max(
                float(np.abs(np.subtract(ours, theirs)).max()) for ours, theirs in pairs
            )

    def checkpoints(self) -> None:
        """What checkpoints cost, and whether one that is cut is ever taken for whole."""
        folder = self.scratch / "run-checkpoints"
        shutil.rmtree(folder, ignore_errors=True)
        graph = self.graph("middle")
        self.found["checkpoint"] = checkpoint_cost.measure(self.bed, graph, folder, 1000)
        (run,) = (folder / str(checkpoint_cost.EVERY) / "runs").glob("2*")
        self.found["checkpoint_cuts"] = cuts(run / "checkpoints", self.scratch / "cuts", CUTS)

    def samplers(self) -> None:
        """Kill samplers of a run that trains."""
        config = {**STEPS, "steps": 900, "pause_s": 0.02}
        run = self.run("samplers", Layout(), self.graph("middle"), 64, config)
        _, self.found["recovery_s"]["sampler"] = disturbed(run, "sampler", [100, 300, 500, 700])

    def stores(self) -> None:
        """Kill stores of the large graph."""
        config = {**STEPS, "features": 128, "steps": 700, "pause_s": 0.02}
        run = self.run("stores", Layout(), self.graph("large"), 64, config)
        _, self.found["recovery_s"]["store"] = disturbed(run, "store", [100, 300, 500])

    def inference(self) -> None:
        """Layer-wise inference over all nodes."""
        self.found["inference"] = infer(self.scratch, self._args)

    def campaign(self) -> None:
        """What the campaign of kills has found, if there is a result of it."""
        if not self._args.campaign.exists():
            return
        document = json.loads(self._args.campaign.read_text())
        wanted = ("seconds", "victim", "decisions", "silence_s", "recovery_s", "difference")
        brief = [
            {name: each.get(name) for name in (*wanted, "is_same", "problems")}
            for each in document["cuts"]
        ]
        self.found["faults"] = {**document["summary"], "cuts": brief, "date": document["date"]}

    def checks(self) -> None:
        """Tests that say yes or no."""
        for name, file in CHECKS.items():
            words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            words += ["-p", "no:xdist", str(ROOT / "tests" / "e2e" / file)]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
            last = done.stdout.strip().splitlines()[-1:]
            self.found["checks"][name] = {"passed": done.returncode == 0, "said": last}


def log(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


def infer(scratch: Path, args: argparse.Namespace) -> Any:
    """Compare layer-wise inference with PyG's."""
    folder = scratch / "inference"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return inference_speed.measure(args.inference_graph, args.sparse_python, args.quick, folder)


def disturbed(run: Run, kind: str, at: Sequence[int]) -> tuple[Path, list[float | None]]:
    """Kill one after the other of a kind after so many steps; how long training paused."""
    killed: list[float] = []
    for number, step in enumerate(at):
        run.wait_for_iteration(step)
        choices = victims(run.bed, kind)
        victim = choices[number % len(choices)]
        os.kill(victim.pid, signal.SIGKILL)
        killed.append(time.monotonic())
        log(f"killed {victim}")
    folder = run.end()
    if left := left_over(run.bed):
        raise RuntimeError(f"left behind: {left}")
    ends = step_ends(folder)
    windows = zip(killed, [*killed[1:], float("inf")], strict=True)
    return folder, [
        recovery_s([end_s for end_s in ends if end_s < until_s], since_s)
        for since_s, until_s in windows
    ]


def parameters(folder: Path) -> list[list[float]]:
    found: list[list[float]] = json.loads((folder / "gradients-0.json").read_text())["parameters"]
    return found


def cuts(folder: Path, scratch: Path, num: int) -> dict[str, int]:
    """Cut the files of a checkpoint at many bytes; how many of those are taken for whole."""
    whole = newest_whole(folder)
    assert whole is not None
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    names = [whole.path.name, whole.sidecar_path.name]
    bytes_of = {name: (folder / name).read_bytes() for name in names}
    num_tried = num_loaded = 0
    for name, data in bytes_of.items():
        for other in names:
            (scratch / other).write_bytes(bytes_of[other])
        sizes = np.unique(np.linspace(0, len(data) - 1, num).astype(int))
        for size in sizes[::-1].tolist():
            os.truncate(scratch / name, size)
            num_tried += 1
            num_loaded += newest_whole(scratch) is not None
    shutil.rmtree(scratch)
    return {"tried": num_tried, "loaded": num_loaded}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--quick", action="store_true", help="what one start can show")
    parser.add_argument("--only", help=f"of {','.join(STAGES)}, by commas")
    parser.add_argument("--scratch", type=Path, help="folder for graphs, kept")
    parser.add_argument("--campaign", type=Path, default=CAMPAIGN, help="result of faults.py")
    parser.add_argument("--sparse-python", help="a Python with torch-sparse and PyG")
    parser.add_argument("--inference-graph", type=Path, help="of 1e6 nodes, in one part")
    parser.add_argument("--output", type=Path, help="result file to write, or to add to")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the testbed down
    begin_s = time.monotonic()
    scratch = args.scratch or Path(tempfile.mkdtemp(prefix="headrace-keeps-"))
    wanted = args.only.split(",") if args.only else ("quick",) if args.quick else STAGES
    name = f"keeps-{os.getpid()}"
    if args.quick:
        # Imported while Ray starts, which leaves much of the cores idle.
        threading.Thread(target=importlib.import_module, args=("torch_geometric.nn",)).start()
    bed = Testbed.up(make_cluster(), name, log=log)
    bench = Bench(bed, scratch, args)
    found: dict[str, Any] = {}
    if args.output is not None and args.output.exists():
        found = json.loads(args.output.read_text())
        bench.found |= {key: found[key] for key in bench.found if key in found}
    try:
        for stage in wanted:
            log(f"stage {stage}")
            method: Callable[[], None] = getattr(bench, stage)
            method()
    finally:
        take_down(name)
        if args.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    found |= {
        "benchmark": "training_for_keeps",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/training_for_keeps.py " + " ".join(sys.argv[1:]),
        "machine": describe_machine(),
        "is_quick": args.quick,
        "elapsed_s": round(time.monotonic() - begin_s, 1),
        **bench.found,
    }
    if args.output is not None:
        args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if args.json else json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
