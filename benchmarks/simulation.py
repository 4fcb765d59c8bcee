"""Deterministic simulation of the runtime: thousands of disturbed runs in virtual time.

    python benchmarks/simulation.py --json --output benchmarks/results/simulation.json
    python benchmarks/simulation.py --seeds 20000 --json --output benchmarks/results/simulation.json
    python benchmarks/simulation.py --quick --json

Each seed is a run of the real controller, recovery, lifecycle, checkpointing, reconnecting channels
and store handlers in one process, with faults drawn from the seed; see `tests/simulation`. With
`--output` the campaign is resumable: it continues after the last batch in the file, until `--seeds`
seeds are done; `--again` begins anew. The last line is one JSON object: faults injected, virtual
hours, seconds per seed, the longest silence, the coverage of lines inside functions, and failures,
each with the command that repeats it. `open` is the number of failures. `--quick` simulates 40.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from tests.simulation.simulation import Result, simulate

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "headrace"
BATCH = 50
MEASURED = {
    "controller": (
        "runtime/controller/controller.py",
        "runtime/controller/failure_handling.py",
        "runtime/controller/machines.py",
        "runtime/controller/worker_group.py",
    ),
    "recovery": (
        "policies/recovery/deciding.py",
        "policies/recovery/events.py",
        "policies/recovery/hangs.py",
        "policies/recovery/stalls.py",
    ),
    "checkpointing": (
        "runtime/controller/checkpoint_fetch.py",
        "runtime/trainer/checkpointer.py",
        "training/checkpoint_files.py",
    ),
    "channels": ("rpc/reconnect.py", "rpc/sync_rounds.py"),
}


class Lines:
    """Which lines inside functions of some files run."""

    def __init__(self) -> None:
        self._files = {
            str(SOURCE / name): group for group, names in MEASURED.items() for name in names
        }
        self._hit: dict[str, set[int]] = {name: set() for name in self._files}

    def __enter__(self) -> Lines:
        threading.settrace(self._enter_frame)
        sys.settrace(self._enter_frame)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)
        threading.settrace(None)

    def _enter_frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        lines = self._hit.get(frame.f_code.co_filename)
        if lines is None:
            return None

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            lines.add(frame.f_lineno)
            return trace

        return trace

    def percentages(self) -> dict[str, Any]:
        """Share of lines per group, and the lines that did not run."""
        found: dict[str, list[int]] = {group: [0, 0] for group in MEASURED}
        missed = {}
        for name, group in self._files.items():
            lines = set(_lines(compile(Path(name).read_text(), name, "exec")))
            found[group][0] += len(lines & self._hit[name])
            found[group][1] += len(lines)
            missed[Path(name).name] = sorted(lines - self._hit[name])
        shares = {group: round(100 * hit / num, 1) for group, (hit, num) in found.items()}
        return {"percent": shares, "missed": missed}


def _lines(code: CodeType, is_function: bool = False) -> Iterator[int]:
    """Lines of all functions, without those of their headers."""
    if is_function:
        first = code.co_firstlineno
        yield from (line for _, _, line in code.co_lines() if line is not None and line > first)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            # A class has its own code, whose lines run at import.
            yield from _lines(each, bool(each.co_flags & 0x2))


def begun() -> dict[str, Any]:
    """A campaign without seeds."""
    return {
        "seeds": 0,
        "open": 0,
        "failures": [],
        "faults": 0,
        "faults_by_kind": {},
        "outcomes": {},
        "decisions": {},
        "events": 0,
        "virtual_hours": 0.0,
        "cpu_s": 0.0,
        "seconds_per_seed": 0.0,
        "slowest_s": 0.0,
    }


def add(document: dict[str, Any], result: Result, cpu_s: float) -> None:
    """Add a run to a campaign."""
    kinds = Counter(document["faults_by_kind"])
    kinds.update(each.kind for each in result.faults if each.kind in result.kinds)
    document["faults_by_kind"] = dict(sorted(kinds.items()))
    document["faults"] += len(result.done)
    for key, words in (("outcomes", [result.outcome.partition(":")[0]]),):
        document[key] = dict(sorted((Counter(document[key]) + Counter(words)).items()))
    decisions = Counter(document["decisions"]) + Counter(result.decisions)
    document["decisions"] = dict(sorted(decisions.items()))
    document["events"] += result.num_events
    document["virtual_hours"] = round(document["virtual_hours"] + result.virtual_s / 3600, 4)
    document["slowest_s"] = round(max(document["slowest_s"], cpu_s), 3)
    document["seeds"] += 1
    add_time(document, cpu_s)
    if result.problem:
        failure = {"seed": result.seed, "problem": result.problem, "replay": result.replay}
        document["failures"].append(failure)
        document["open"] = len(document["failures"])


def add_time(document: dict[str, Any], cpu_s: float) -> None:
    """Add CPU time to a campaign."""
    document["cpu_s"] = round(document["cpu_s"] + cpu_s, 3)
    document["seconds_per_seed"] = round(document["cpu_s"] / document["seeds"], 4)


def coverage(num: int) -> dict[str, Any]:
    """Coverage of some seeds."""
    with Lines() as lines:
        for seed in range(num):
            simulate(seed)
    return {"seeds": num, **lines.percentages()}


def main() -> int:
    """Run or resume the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="40 seeds")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--seeds", type=int, help="seeds of the whole campaign (20,000)")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--again", action="store_true", help="do not resume")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    num = args.seeds or (40 if args.quick else 20_000)
    # Its threads take turns: on one core they hand over faster.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    document = begun()
    if args.output and args.output.exists() and not args.again:
        document |= json.loads(args.output.read_text())
    end_s = time.monotonic() + args.limit_s
    # What is compiled or loaded first is not part of a seed.
    simulate(0)
    gc.collect()
    gc.freeze()
    # A run leaves cycles: they are collected after each batch, which counts, and not meanwhile.
    gc.disable()
    while document["seeds"] < num and time.monotonic() < end_s:
        for seed in range(document["seeds"], min(document["seeds"] + BATCH, num)):
            began_s = time.process_time()
            result = simulate(seed)
            add(document, result, time.process_time() - began_s)
        began_s = time.process_time()
        gc.collect()
        add_time(document, time.process_time() - began_s)
        _write(document, args.output, bool(args.quick))
        if not args.json:
            print(f"{document['seeds']} seeds, {document['open']} open", file=sys.stderr)
    if document["seeds"] >= num and "coverage" not in document:
        document["coverage"] = coverage(15 if args.quick else 300)
    _write(document, args.output, bool(args.quick))
    print(json.dumps(document))
    return 1 if document["open"] else 0


def _write(document: dict[str, Any], output: Path | None, is_quick: bool) -> None:
    document |= {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/simulation.py " + " ".join(sys.argv[1:]),
        "is_quick": is_quick,
    }
    if output:
        partial = output.with_suffix(".partial")
        partial.write_text(json.dumps(document, indent=1) + "\n")
        partial.replace(output)


if __name__ == "__main__":
    sys.exit(main())
