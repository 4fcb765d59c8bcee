"""Plant a mistake in the source, one at a time, and see whether the tests of a change find it.

    python benchmarks/mutants.py --json --output benchmarks/results/mutants.json
    python benchmarks/mutants.py --json --tree PATH   # the tests and the source of another checkout
    python benchmarks/mutants.py --quick --json

Each mutant is one replaced line in a copy of the tree. Only the tests near it run: what they find,
all tests find. The last line is one JSON object: `caught`, `missed`, and per mutant the first test
that failed. First all chosen tests run without a mutant, and have to pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
_COPIED = ("src", "tests", "benchmarks", "examples", "docs", "pyproject.toml", "README.md")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
        name: What is wrong.
        file: Below `src/headrace`.
        old: What is replaced; it appears once in the file.
        new: What it becomes.
        tests: Files or folders below `tests` that should notice; those that a checkout lacks are
            left out.
        only: Expression of pytest's `-k`.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    only: str = ""


MUTANTS = (
    Mutant(
        "a store accepts an id that is one too large",
        "graph/store/service.py",
        "array.max() < first + count:",
        "array.max() <= first + count:",
        ("unit/graph/store", "integration/store_service/test_requests.py"),
    ),
    Mutant(
        "a store accepts every token",
        "rpc/credentials.py",
        "return hmac.compare_digest(self._value, given)",
        "return len(given) > 0",
        ("unit/graph/store", "integration/store_service/test_strangers.py"),
    ),
    Mutant(
        "a checkpoint with wrong bytes counts as whole",
        "training/checkpoint_files.py",
        "if _digest(found.path) == (sidecar.size, sidecar.sha256):",
        "if _digest(found.path)[0] == sidecar.size:",
        ("unit/training/test_checkpoint_files.py", "property/test_checkpoints.py"),
    ),
    Mutant(
        "a checkpoint does not renew the retry budget",
        "policies/recovery/deciding.py",
        "state, saved=iteration, restarts={}, resumes=0, own_failures=0, has_stepped=True",
        "state, saved=iteration, restarts={}, own_failures=0, has_stepped=True",
        ("unit/policies/test_recovery.py", "property"),
        "recovery or resume or budget",
    ),
    Mutant(
        "faults are told in the order they were seen in, not in the order of their causes",
        "runtime/controller/failure_handling.py",
        "return isinstance(fault, Ended) and fault.code != -signal.SIGKILL, happened_s",
        "return False, happened_s",
        ("unit/runtime",),
        "mend or held or hold or order or fault",
    ),
    Mutant(
        "the planner forgets what samplers elsewhere send to a trainer",
        "planner/cost/nic_loads.py",
        "incoming = model.graph_in[every, on[0]] + model.batch_in * arriving",
        "incoming = model.graph_in[every, on[0]] + model.batch_in * leaving",
        ("unit/planner",),
        "load or exact or bound",
    ),
    Mutant(
        "the planner overlooks the stores' resources",
        "planner/methods/bin_packing.py",
        "free=capacities - demand_vector(job, Role.STORE, names) + _slack(capacities),",
        "free=capacities + _slack(capacities),",
        ("unit/planner", "contract/test_placements.py"),
        "pack or store or fit or within_capacity",
    ),
    Mutant(
        "every epoch has the same order of seeds",
        "graph/sampler_worker/schedule.py",
        "key = np.uint64(hop_key(seed, epoch, 0, 0, _ORDER))",
        "key = np.uint64(hop_key(seed, 0, 0, 0, _ORDER))",
        ("unit/graph/sampler_worker",),
    ),
    Mutant(
        "rows of other machines are put where the first ones belong",
        "graph/sampling/feature_gather.py",
        "wanted, order = np.unique(ids, return_inverse=True)\n    return wanted, order",
        "wanted, order = np.unique(ids, return_inverse=True)\n    return wanted, np.sort(order)",
        ("unit/graph/loader", "integration/test_loaders.py", "integration/test_feeding_remote.py"),
    ),
    Mutant(
        "another sampler begins with a batch that was handed over already",
        "graph/sampler_worker/channels/failover.py",
        "is_last = part.batch + 1 >= self._batches_per_epoch",
        "is_last = part.batch >= self._batches_per_epoch",
        ("unit/graph/sampler_worker",),
    ),
    Mutant(
        "gradients are not weighed by the seeds they were computed from",
        "training/ddp.py",
        "work = dist.all_reduce(gradients.mul_(step.weight), async_op=True)",
        "work = dist.all_reduce(gradients.mul_(1 / dist.get_world_size()), async_op=True)",
        ("unit/training", "integration/test_data_parallel.py"),
        "gradients_are_those",
    ),
    Mutant(
        "a parameter server counts gradients that were sent twice",
        "rpc/sync_rounds.py",
        "pieces[piece] = push",
        "pieces[len(pieces)] = push",
        ("unit/training/parameter_server",),
    ),
)


def run(tree: Path, mutants: tuple[Mutant, ...]) -> dict[str, Any]:
    """Try all mutants in a copy of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "headrace"
        copy.mkdir()
        for name in _COPIED:
            _copy(tree / name, copy / name)
        found: dict[str, str | None] = {}
        for mutant in mutants:
            if (problem := _first_failure(copy, mutant)) is not None:
                raise RuntimeError(f"without a mutant: {problem} fails")
            path = copy / "src" / "headrace" / mutant.file
            text = path.read_text()
            if text.count(mutant.old) != 1:
                raise RuntimeError(f"{mutant.file} has this {text.count(mutant.old)} times")
            path.write_text(text.replace(mutant.old, mutant.new))
            found[mutant.name] = _first_failure(copy, mutant)
            path.write_text(text)
            print(f"{mutant.name}: {found[mutant.name] or 'MISSED'}", file=sys.stderr, flush=True)
    missed = [name for name, test in found.items() if test is None]
    return {"caught": len(found) - len(missed), "missed": missed, "mutants": found}


def _copy(source: Path, target: Path) -> None:
    if source.is_file():
        shutil.copy2(source, target)
    elif source.is_dir():
        shutil.copytree(source, target)


def _first_failure(copy: Path, mutant: Mutant) -> str | None:
    """The first test that fails; none if all pass."""
    tests = [f"tests/{each}" for each in mutant.tests if (copy / "tests" / each).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    command += ["-k", mutant.only] if mutant.only else []
    # Compiled kernels are kept by the time a file was changed.
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    done = subprocess.run(
        command, cwd=copy, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode == 0:
        return None
    failed = _FAILED.search(done.stdout)
    if failed is None:
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return failed[1]


def main() -> int:
    """Try the mutants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="two mutants")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout (this one)")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    began_s = time.perf_counter()
    document = {
        **run(args.tree.resolve(), MUTANTS[2:4] if args.quick else MUTANTS),
        "seconds": round(time.perf_counter() - began_s, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/mutants.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 1 if document["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
