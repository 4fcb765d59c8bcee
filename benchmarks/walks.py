"""Count the source files that a batch and a plan pass through.

    python benchmarks/walks.py
    python benchmarks/walks.py --json --quick

The last line is one JSON object:

- `batch`: `headrace run --local` with 2 graph partitions, 1 sampler and a script that takes three
  batches, counted in the trainer, the sampler and the stores;
- `plan`: `headrace run --plan` on 2 machines, from the command to the last actor, counted in the
  driver. Ray is replaced by a module that knows two nodes and creates no actors, so no cluster is
  needed.

A file counts if one of its functions is entered. Functions called by a module during its import do
not count, nor numba kernels. `packages` are the files of graph, runtime, training and of packages
that were split off from them; `files` are those without the latter; `all` is everything below
`src/headrace`. `--quick` counts only the batch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine

SOURCE = Path(__file__).resolve().parents[1] / "src" / "headrace"
FIRST = ("graph", "runtime", "training")
SPLIT_OFF = ("rpc", "tracing", "linux", "prefork")
KINDS = {
    "trainer": "runtime/trainer/__main__.py",
    "sampler": "graph/sampler_worker/__main__.py",
    "store": "graph/store/__main__.py",
}
"""The file whose functions only this kind of process enters."""

HOOK = """
import os, sys, threading

SOURCE, FOLDER = os.environ["WALKS_SOURCE"], os.environ["WALKS_FOLDER"]
OPTIMIZED = 1  # CO_OPTIMIZED: functions have it, modules and class bodies do not
seen = set()


def enter(frame, event, argument):
    code = frame.f_code
    if event != "call" or code in seen:
        return
    if not code.co_filename.startswith(SOURCE) or not code.co_flags & OPTIMIZED:
        seen.add(code)
        return
    caller = frame.f_back
    if caller is not None and not caller.f_code.co_flags & OPTIMIZED:
        if caller.f_globals.get("__name__") != "__main__":
            return
    seen.add(code)
    with open(f"{FOLDER}/{os.getpid()}", "a") as file:
        file.write(code.co_filename[len(SOURCE) + 1:] + "\\n")


os.register_at_fork(after_in_child=seen.clear)
threading.setprofile(enter)
sys.setprofile(enter)
"""

RAY = """
import os, sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from unittest.mock import MagicMock

num_tasks = num_actors = 0


def placement_group(bundles, **options):
    global num_tasks
    num_tasks = len(bundles)


def start(*arguments):
    global num_actors
    num_actors += 1
    if num_actors == num_tasks:
        os._exit(0)
    return MagicMock()


def node(number):
    return {
        "Alive": True,
        "NodeID": f"{number:056x}",
        "NodeManagerAddress": "127.0.0.1",
        "NodeManagerHostname": f"m-{number}",
        "Resources": {"CPU": 64.0, "memory": 2.0**40},
    }


class RayError(Exception):
    pass


ray = MagicMock(__spec__=ModuleSpec("ray", None))
ray.nodes = lambda: [node(0), node(1)]
ray.remote.return_value.options.return_value.remote = start
ray.exceptions = SimpleNamespace(
    RayError=RayError, GetTimeoutError=RayError, AuthenticationError=RayError
)
ray.util.placement_group.placement_group = placement_group
ray.util.placement_group.placement_group_table = lambda group: {"state": "CREATED"}
modules = ("util", "util.placement_group", "util.scheduling_strategies", "util.metrics")
sys.modules |= {"ray": ray, "ray.exceptions": ray.exceptions}
for name in modules:
    found = ray
    for each in name.split("."):
        found = getattr(found, each)
    sys.modules[f"ray.{name}"] = found
"""

SCRIPT = """
import sys
import headrace

loader = headrace.NeighborLoader(sys.argv[1], [3, 2], "train", batch_size=8, shuffle=True)
for number, batch in enumerate(loader, 1):
    if number == 3:
        break
headrace.report(batches=number)
"""


def count(entered: dict[str, set[str]]) -> dict[str, Any]:
    """Counts of files, by kind of process and in all."""
    everything = set().union(*entered.values())
    packages = within(everything, FIRST + SPLIT_OFF)
    return {
        "files": len(within(everything, FIRST)),
        "packages": len(packages),
        "all": len(everything),
        "by_process": {
            kind: len(within(files, FIRST + SPLIT_OFF)) for kind, files in entered.items()
        },
        "names": sorted(packages),
    }


def within(files: set[str], packages: tuple[str, ...]) -> set[str]:
    return {file for file in files if file.split("/")[0] in packages}


def walk(scratch: Path, name: str, *command: str, hook: str = HOOK) -> list[set[str]]:
    """Run `headrace` and return the files that each process entered."""
    records = scratch / name
    records.mkdir()
    (records / "sitecustomize.py").write_text(hook)
    paths = [str(records), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")]
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "WALKS_SOURCE": str(SOURCE),
        "WALKS_FOLDER": str(records),
        "HEADRACE_RUNS": str(scratch / "runs"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "headrace", *command],
        env={**os.environ, **variables},
        cwd=scratch,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"headrace {' '.join(command)}: {done.stdout}{done.stderr}")
    files = [set(record.read_text().splitlines()) for record in records.glob("[0-9]*")]
    return [{file for file in each if not file.startswith("graph/kernels/")} for each in files]


def batch_walk(scratch: Path, graph: Path) -> dict[str, Any]:
    """Three batches of a local run."""
    script = scratch / "train.py"
    script.write_text(SCRIPT)
    options = ("--graph", str(graph), "--samplers", "1", str(script), "--", str(graph))
    entered: dict[str, set[str]] = defaultdict(set)
    for files in walk(scratch, "batch", "run", "--local", *options):
        for kind, main in KINDS.items():
            if main in files:
                entered[kind] |= files
    return count(entered)


def plan_walk(scratch: Path, graph: Path) -> dict[str, Any]:
    """A plan until its actors are placed."""
    walk(scratch, "init", "init", "--machines", "2", "--gpus", "0", "--bandwidth", "1Gbps", hook="")
    files = ("--cluster", "cluster.yaml", "--job", "job.yaml", "--output", "plan.json")
    method = ("--method", "colocate", "--policy", "maxmin")
    walk(scratch, "planned", "plan", *files, *method, hook="")
    options = ("--plan", "plan.json", "--graph", str(graph), str(scratch / "train.py"))
    driver = set().union(*walk(scratch, "plan", "run", *options, hook=RAY + HOOK))
    return count({"driver": driver})


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--quick", action="store_true", help="count only the batch")
    parser.add_argument("--output", type=Path, help="result file to write")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-walks-") as folder:
        scratch = Path(folder)
        graph = scratch / "graph"
        source = "generated:nodes=1000,edges=8000,features=8,classes=4"
        walk(scratch, "cut", "partition", source, "--parts", "2", "-o", str(graph), hook="")
        walks = {"batch": batch_walk(scratch, graph)}
        if not args.quick:
            walks["plan"] = plan_walk(scratch, graph)
    result = {
        **walks,
        "benchmark": "walks",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/walks.py " + " ".join(sys.argv[1:]),
        "machine": describe_machine(),
        "is_quick": args.quick,
    }
    if args.output is not None:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result) if args.json else json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
