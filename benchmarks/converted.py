"""Three PyG scripts and what became of them: accuracy alone, with --local and on a cluster.

    python benchmarks/converted.py --pyg PYTHON --json --output benchmarks/results/converted.json
    python benchmarks/converted.py --quick --json

The scripts are pairs in `examples/from_pyg`: GAT on Amazon-Computers, GraphSAGE with the types of
IMDB, links of WN18RR. The first of a pair runs with PyG's own loader, which needs torch-sparse or
pyg-lib: PYTHON is an interpreter that has one. The second runs alone, with `headrace run --local`,
and by a plan with two trainers on two emulated machines (needs root and iproute2), where each
trainer has half of the batch.

The last line is one JSON object. `scripts` has for each the `lines_changed` (lines of the second
that the first does not have), `points` of every seed by way (per cent of accuracy, for links of the
area under the curve), and for each way `difference` from PyG's mean, its `standard_error`, and
`is_same`: at most max(0.5 points, 2 standard errors). `--quick` is one epoch of one script alone
and with --local; the rest is null.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.batch_sources import DATA, ROOT, Task, load
from benchmarks.machine import describe_machine
from headrace.api.documents.load import save_plan
from headrace.api.graph import partition
from headrace.api.plan import plan
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.testbed import Testbed, take_down

SCRIPTS = ROOT / "examples" / "from_pyg"
WAYS = ("pyg", "alone", "local", "cluster")
LEAST_POINTS = 0.5
NUM_PARTS = 2


@dataclass(frozen=True)
class Pair:
    """A script and what became of it.

    Attributes:
        task: Which graph.
        batch_size: Seeds per iteration of all trainers.
        epochs: How many.
        figure: What it reports.
    """

    task: Task
    batch_size: int
    epochs: int
    figure: str


PAIRS = {
    "gat": Pair(Task(str(DATA / "amazon_computers")), 128, 10, "accuracy"),
    "typed_sage": Pair(Task(str(DATA / "gds_hetero" / "imdb"), "RGCN"), 128, 10, "accuracy"),
    "links": Pair(Task(str(DATA / "wn18rr"), "links"), 1024, 5, "auc"),
}


def prepare(name: str, folder: Path) -> None:
    """Write the graph as PyG has it, cut it into parts, and put the scripts beside its links."""
    import torch

    whole = load(PAIRS[name].task, folder / "whole")
    shutil.rmtree(folder / "whole")
    data = whole.data
    seeds = data[whole.seed_type] if hasattr(data, "node_types") else data
    for split, ids in whole.splits.items():
        mask = torch.zeros(seeds.num_nodes, dtype=torch.bool)
        mask[torch.from_numpy(ids)] = True
        seeds[f"{split}_mask"] = mask
    torch.save(data, folder / "graph.pt")
    partition(data, folder / "parts", NUM_PARTS)
    for script in (f"{name}.py", f"{name}_pyg.py"):
        shutil.copy(SCRIPTS / script, folder)
    if whole.links.size:
        # Messages go both ways; links of the first half of all edges are as they were.
        train = data.edge_index[:, : data.num_edges // 2]
        torch.save({"train": train, "test": torch.from_numpy(whole.links)}, folder / "links.pt")


def lines_changed(name: str) -> int:
    """Lines of the second script that the first does not have; what was only moved counts not."""
    first, second = (
        [line.strip() for line in (SCRIPTS / each).read_text().splitlines() if line.strip()]
        for each in (f"{name}_pyg.py", f"{name}.py")
    )
    diff = difflib.ndiff(first, second)
    return sum(line.startswith("+ ") for line in diff)


class Trials:
    """Trainings of one pair.

    Args:
        name: Of the pair.
        folder: With its graph and scripts.
        python: An interpreter with PyG's own samplers.
        epochs: How many.
        bed: Two machines; none if nothing runs there.
    """

    def __init__(
        self, name: str, folder: Path, python: str, epochs: int, bed: Testbed | None
    ) -> None:
        self._name, self._folder, self._python = name, folder, python
        self._pair, self._epochs, self._bed = PAIRS[name], epochs, bed

    def points(self, way: str, seed: int) -> float:
        """Train with a seed; points of the last epoch."""
        own = [sys.executable, "-m", "headrace", "run"]
        rest = ["--epochs", str(self._epochs), "--seed", str(seed)]
        parts, script = str(self._folder / "parts"), f"{self._name}.py"
        if way == "pyg":
            words = [self._python, f"{self._name}_pyg.py", "graph.pt", *rest]
        elif way == "alone":
            words = [sys.executable, script, parts, *rest]
        elif way == "local":
            words = [*own, "--local", "--graph", parts, script, "--", parts, *rest]
        else:
            assert self._bed is not None
            words = [*own, "--plan", str(self._plan()), "--graph", parts, "--checkpoint-every", "0"]
            words += ["--runs", str(self._folder / "runs"), script, "--", parts, *rest]
            words = self._bed.command("m0", words)
        done = subprocess.run(
            words, cwd=self._folder, capture_output=True, text=True, timeout=1200, check=False
        )
        found = re.findall(rf"{self._pair.figure} (\d\.\d+)", done.stdout + done.stderr)
        if done.returncode or not found:
            raise RuntimeError(f"{way} ended with {done.returncode}: {done.stderr[-2000:]}")
        return 100 * float(found[-1])

    def _plan(self) -> Path:
        path = self._folder / "plan.json"
        if not path.exists():
            job = Job(
                name=self._name,
                trainers=NUM_PARTS,
                batch_size=self._pair.batch_size // NUM_PARTS,
                demands={role: {"cpu": 1} for role in (Role.TRAINER, Role.SAMPLER)},
            )
            save_plan(plan(machines(), job, method="colocate", policy="maxmin"), path)
        return path


def machines() -> Cluster:
    """Two, without limits."""
    return Cluster(
        machines=tuple(
            Machine(name=f"m{i}", resources={"cpu": 4.0}, nic_in=1.25e9, nic_out=1.25e9)
            for i in range(NUM_PARTS)
        )
    )


def compare(points: dict[str, list[float]]) -> dict[str, Any]:
    """Each way beside PyG's own."""
    theirs = points.get("pyg") or []
    rows = {}
    for way, ours in points.items():
        if way == "pyg" or len(theirs) < 2:
            continue
        error = (stdev(ours) ** 2 / len(ours) + stdev(theirs) ** 2 / len(theirs)) ** 0.5
        difference = mean(ours) - mean(theirs)
        rows[way] = {
            "difference": difference,
            "standard_error": error,
            "is_same": abs(difference) <= max(LEAST_POINTS, 2 * error),
        }
    return rows


def measure(
    name: str, python: str, ways: Sequence[str], num_seeds: int, epochs: int | None
) -> dict[str, Any]:
    """Train a pair's scripts in all ways."""
    bed_name = f"converted-{os.getpid()}"
    folder = Path(tempfile.mkdtemp(prefix="headrace-converted-"))
    try:
        prepare(name, folder)
        bed = Testbed.up(machines(), bed_name) if "cluster" in ways else None
        trials = Trials(name, folder, python, epochs or PAIRS[name].epochs, bed)
        points: dict[str, list[float]] = {way: [] for way in ways}
        for seed in range(num_seeds):
            for way in ways:
                points[way].append(trials.points(way, seed))
                log(f"{name}, {way}, seed {seed}: {points[way][-1]:.2f} points")
    finally:
        take_down(bed_name)
        shutil.rmtree(folder, ignore_errors=True)
    return {"lines_changed": lines_changed(name), "points": points, **compare(points)}


def log(line: str) -> None:
    """Log a line with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--quick", action="store_true", help="one epoch of one script")
    parser.add_argument("--pyg", default=sys.executable, help="interpreter with torch-sparse")
    parser.add_argument("--only", help=f"of {','.join(PAIRS)}, by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="result file to write, or to add to")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the testbed down
    if (
        not args.quick
        and subprocess.run([args.pyg, "-c", "import torch_sparse"], check=False).returncode
    ):
        raise SystemExit("PyG's own loader needs torch-sparse: give --pyg a Python that has it")
    begin_s = time.monotonic()
    found: dict[str, Any] = {"scripts": dict.fromkeys(PAIRS)}
    if args.output is not None and args.output.exists():
        found = json.loads(args.output.read_text())
    wanted = ["gat"] if args.quick else args.only.split(",") if args.only else list(PAIRS)
    for name in wanted:
        if args.quick:
            found["scripts"][name] = measure(name, args.pyg, ("alone", "local"), 1, 1)
        else:
            found["scripts"][name] = measure(name, args.pyg, WAYS, args.seeds, None)
        found |= {
            "benchmark": "converted",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": "python benchmarks/converted.py " + " ".join(sys.argv[1:]),
            "machine": describe_machine(),
            "is_quick": args.quick,
            "elapsed_s": round(time.monotonic() - begin_s, 1),
        }
        if args.output is not None:
            args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if args.json else json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
