"""Kill a store or a sampler at a random time: the trainer must get an error that names it.

    python benchmarks/kills.py --json
    python benchmarks/kills.py --quick --json

Two stores and two samplers feed a trainer; all are processes. Every trial is a process too, with
its own random seed for victim and time: in one trial of three while samplers start, otherwise after
or during some batch. Within 15 s the trainer must get an error that names the task and its machine.
After the trial no process and no shared memory may be left. The last line is one JSON object:
`failed` has the problems of each trial, `slowest_s` the longest time from a death to its error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from tests.support.kill_trials import run


def main() -> int:
    """Run the trials."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="5 trials")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--trials", type=int, default=30, help="how many (30)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first trial (0)")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    began = time.perf_counter()
    num_trials = 5 if args.quick else args.trials
    seeds = range(args.first_seed, args.first_seed + num_trials)

    def log(found: dict[str, Any]) -> None:
        if not args.json:
            print(json.dumps(found), flush=True)

    document = run(seeds, log)
    document |= {
        "seconds": round(time.perf_counter() - began, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/kills.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 1 if document["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
