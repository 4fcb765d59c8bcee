"""Try the bounds on `oes` (the paper's) and on `paced` on many small random instances.

    python benchmarks/theory.py --instances 100000 --json

The last line is one JSON object. `tests/oracle/theory.py` and `tests/oracle/pacing.py` state the
bounds; a violation of any makes the exit code 1. `single_chunk_*` shows what happens if a ring's
degree counted one chunk per trainer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from headrace.simulator import Instance, simulate
from tests.oracle.pacing import run_paced_campaign
from tests.oracle.theory import run_campaign

NUM_INSTANCES = 100_000
NUM_QUICK = 10_000


def oes_makespan_s(instance: Instance) -> float:
    return simulate(instance, "oes").makespan_s


def paced_makespan_s(instance: Instance) -> float:
    return simulate(instance, "paced").makespan_s


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the bounds on random instances.")
    parser.add_argument("--instances", type=int, help=f"of each (default {NUM_INSTANCES:,})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the instances")
    parser.add_argument("--quick", action="store_true", help=f"{NUM_QUICK:,} of each, under 50 s")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    num_instances = args.instances or (NUM_QUICK if args.quick else NUM_INSTANCES)

    start = time.perf_counter()
    campaign = run_campaign(num_instances, args.seed, oes_makespan_s)
    paced = run_paced_campaign(num_instances, args.seed, paced_makespan_s)
    seconds = round(time.perf_counter() - start, 2)
    found = asdict(campaign) | asdict(paced) | {"seconds": seconds}
    if args.output:
        origin = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "machine": describe_machine(),
            "command": "python benchmarks/theory.py " + " ".join(sys.argv[1:]),
        }
        args.output.write_text(json.dumps(found | origin, indent=1) + "\n")
    if not args.json:
        for name, figure in found.items():
            print(f"{name:28} {figure}")
    print(json.dumps(found))
    violations = campaign.theorem3_violations + campaign.delta_violations + paced.paced_violations
    return int(violations > 0)


if __name__ == "__main__":
    sys.exit(main())
