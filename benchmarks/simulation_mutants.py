"""Plant a mistake in the runtime, one at a time, and see whether simulated runs find it.

    python benchmarks/simulation_mutants.py --json --output FILE
    python benchmarks/simulation_mutants.py --quick --json

Each mutant is one replaced text in a copy of `src`. Seeds are simulated with the copy until one
fails; the faults are of the kinds at which the mutant aims, as a campaign draws them sooner or
later. The seed that fails has to pass without the mutant. The last line is one JSON object:
`caught`, `missed`, and per mutant the seed and what was found. `--quick` tries one per module.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# What takes long to load and is no part of headrace is loaded once.
import numba  # noqa: F401
import torch

from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
NUM_SEEDS = 120


@dataclass(frozen=True)
class Mutant:
    """A mistake.

    Attributes:
        name: What is wrong.
        module: The part of the runtime.
        file: Below `src/headrace`.
        old: What is replaced; it appears once in the file.
        new: What it becomes.
        kinds: Kinds of faults; empty for all.
    """

    name: str
    module: str
    file: str
    old: str
    new: str
    kinds: tuple[str, ...] = ()


MUTANTS = (
    Mutant(
        "task actors are killed instead of closed",
        "controller",
        "runtime/controller/worker_group.py",
        "there = self._actors.keys() - self._lost",
        "there = set[str]()",
        ("kill task",),
    ),
    Mutant(
        "a task is polled once",
        "controller",
        "runtime/controller/controller.py",
        "            self._polled.discard(name)\n            if name in self._debouncer.unasked:",
        "            if name in self._debouncer.unasked:",
        ("kill task",),
    ),
    Mutant(
        "deadlines are not looked at",
        "controller",
        "runtime/controller/controller.py",
        "        self._emit(Tick())",
        "        pass",
        ("freeze actor", "cut"),
    ),
    Mutant(
        "a decision to resume is lost",
        "recovery",
        "runtime/controller/failure_handling.py",
        "return decision if isinstance(decision, Resume | GiveUp) else None",
        "return None",
        ("kill task", "kill actor"),
    ),
    Mutant(
        "a killed task counts as one that failed by itself",
        "recovery",
        "policies/recovery/deciding.py",
        "if code <= 0 or code in (*_DEPENDENCY_CODES, _INTERRUPTED):",
        "if code in (*_DEPENDENCY_CODES, _INTERRUPTED):",
        ("kill task",),
    ),
    Mutant(
        "the first restart of a store is one too many",
        "recovery",
        "policies/recovery/deciding.py",
        "if number > state.limits.restarts:",
        "if number >= 1:",
        ("kill task",),
    ),
    Mutant(
        "a fetched checkpoint is not synchronised with the disk",
        "checkpointing",
        "runtime/controller/checkpoint_fetch.py",
        "os.fsync(file.fileno())",
        "pass",
        ("power loss",),
    ),
    Mutant(
        "a checkpoint with wrong bytes counts as whole",
        "checkpointing",
        "training/checkpoint_files.py",
        "if _digest(found.path) == (sidecar.size, sidecar.sha256):",
        "if _digest(found.path)[0] == sidecar.size:",
        ("flip bit", "kill task", "kill driver"),
    ),
    Mutant(
        "random numbers are not restored",
        "checkpointing",
        "runtime/trainer/checkpointer.py",
        "restore_random_state(randoms[rank], self._device)",
        "begin_random(rank)",
        ("kill task", "kill driver"),
    ),
    Mutant(
        "a request is not repeated on a new connection",
        "channels",
        "rpc/reconnect.py",
        "if not self._is_late(request):",
        "if self._is_late(request):",
        ("reset",),
    ),
    Mutant(
        "gradients that were sent twice count twice",
        "channels",
        "rpc/sync_rounds.py",
        "pieces[piece] = push",
        "pieces[len(pieces)] = push",
        ("reset", "delay"),
    ),
    Mutant(
        "gradients of a completed round are refused",
        "channels",
        "rpc/sync_rounds.py",
        "        if self._is_done(number):\n            return False\n",
        "",
        ("reset", "delay"),
    ),
)


def first_failure(
    source: Path, kinds: tuple[str, ...], seeds: Sequence[int]
) -> dict[str, Any] | None:
    """The first seed that fails with a copy of the source; run in a process of its own."""
    sys.path.insert(0, str(source))
    from tests.simulation.faults import draw
    from tests.simulation.simulation import simulate

    for seed in seeds:
        result = simulate(seed, draw(seed, kinds))
        if result.problem:
            return {"seed": seed, "problem": result.problem[:300]}
    return None


def in_child(source: Path, kinds: tuple[str, ...], seeds: Sequence[int]) -> dict[str, Any] | None:
    """`first_failure` in a fork of this process, which has not imported headrace."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            found = first_failure(source, kinds, seeds)
            os.write(theirs, json.dumps(found).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status:
        # A simulation must not fall over its mutant.
        raise RuntimeError(f"the simulation has ended with {status}")
    found = json.loads(data)
    return None if found is None else dict(found)


def run(mutants: tuple[Mutant, ...]) -> dict[str, Any]:
    """Try all mutants."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in mutants:
            path = copy / "headrace" / mutant.file
            text = path.read_text()
            if text.count(mutant.old) != 1:
                raise RuntimeError(f"{mutant.file} has this {text.count(mutant.old)} times")
            path.write_text(text.replace(mutant.old, mutant.new))
            what = in_child(copy, mutant.kinds, range(NUM_SEEDS))
            path.write_text(text)
            if what is not None and in_child(copy, mutant.kinds, [what["seed"]]) is not None:
                raise RuntimeError(f"seed {what['seed']} fails without the mutant {mutant.name!r}")
            found[mutant.name] = {"module": mutant.module, "found": what}
            print(f"{mutant.name}: {what or 'MISSED'}", file=sys.stderr, flush=True)
    missed = [name for name, each in found.items() if each["found"] is None]
    return {"caught": len(found) - len(missed), "missed": missed, "mutants": found}


def main() -> int:
    """Try the mutants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one per module")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    began_s = time.perf_counter()
    torch.set_num_threads(1)
    document = {
        **run(MUTANTS[::3] if args.quick else MUTANTS),
        "seeds": NUM_SEEDS,
        "seconds": round(time.perf_counter() - began_s, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/simulation_mutants.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 1 if document["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
