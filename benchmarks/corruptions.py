"""Damage one file of a graph after the other: runs must report it, and not crash.

    python benchmarks/corruptions.py --json --output benchmarks/results/corruptions.json
    python benchmarks/corruptions.py --quick --json

A trial flips a bit or exponents, writes noise or zeros, cuts, lengthens or turns one file of a
graph in two parts. A store then answers requests for all that it has, in a process of its own; or
`headrace run --local` trains with stores and a sampler. `silent` counts answers that were wrong
without an error, `crash` processes that a signal ended, `traceback` errors without an explanation:
each has to be 0. `refused` were told with a sentence, `harmless` changed no answer. `formats` are
manifests, plans, traces, `run.json`, sidecars of checkpoints, journals and records of learnt rows.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from headrace.graph.format.checksums import VerifiedFiles
from headrace.prefork.client import KEEP_VARIABLE
from tests.support import corruption_trials as trials


def main() -> int:
    """Run the trials."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="60 in a store, 2 in runs, 200 others")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--store", type=int, default=500, help="trials in a store (500)")
    parser.add_argument("--local", type=int, default=500, help="trials in runs (500)")
    parser.add_argument("--formats", type=int, default=1000, help="trials of other files (1000)")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    chosen = (60, 2, 200) if args.quick else (args.store, args.local, args.formats)
    num_store, num_local, num_formats = chosen
    began = time.perf_counter()
    counts = {where: Counter[str]() for where in ("store", "local", "formats")}
    wrong: list[dict[str, Any]] = []

    def note(found: dict[str, Any]) -> None:
        counts[found["where"]][found["outcome"]] += 1
        if found["outcome"] not in trials.FINE:
            wrong.append(found)
        if not args.json:
            print(json.dumps(found), flush=True)

    with tempfile.TemporaryDirectory(prefix="headrace-corruptions-") as name:
        scratch = Path(name)
        intact = scratch / "intact"
        trials.make_graph(intact)
        expected = trials.use_store(intact, VerifiedFiles(scratch / "known"))
        for seed in range(num_store):
            note(trials.try_store(intact, scratch, seed, expected))
        formats = trials.Formats(scratch / "formats")
        for seed in range(num_formats):
            note(formats.try_one(seed))
        if num_local:
            done = trials.run_local(intact, scratch)
            total = trials.total_of(done)
            if done.returncode or not total:
                raise SystemExit(f"the intact graph fails: {done.stdout}{done.stderr}")
        # Tasks of the runs are forks of warm processes, which import torch once.
        os.environ.setdefault(KEEP_VARIABLE, "30")
        for seed in range(num_local):
            note(trials.try_local(intact, scratch, seed, total))
    document: dict[str, Any] = {
        where: {outcome: count[outcome] for outcome in trials.OUTCOMES}
        for where, count in counts.items()
    }
    document |= {
        "num_trials": sum(chosen),
        "wrong": wrong,
        "seconds": round(time.perf_counter() - began, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/corruptions.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
