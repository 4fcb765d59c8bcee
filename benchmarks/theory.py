"""Try the paper's bounds on T_OES on many small random instances.

    python benchmarks/theory.py --instances 100000 --json

The last line is one JSON object. `tests/oracle/theory.py` states the bounds; violations of either
make the exit code 1. `single_chunk_*` shows what happens if a ring's degree counted one chunk per
trainer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headrace.simulator import Instance, simulate
from tests.oracle.theory import run_campaign

NUM_INSTANCES = 100_000
NUM_QUICK = 20_000


def oes_makespan_s(instance: Instance) -> float:
    return simulate(instance, "oes").makespan_s


def main() -> int:
    parser = argparse.ArgumentParser(description="Try the paper's bounds on random instances.")
    parser.add_argument("--instances", type=int, help=f"how many (default {NUM_INSTANCES:,})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the instances")
    parser.add_argument("--quick", action="store_true", help=f"{NUM_QUICK:,} instances, under 50 s")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    args = parser.parse_args()
    num_instances = args.instances or (NUM_QUICK if args.quick else NUM_INSTANCES)

    start = time.perf_counter()
    campaign = run_campaign(num_instances, args.seed, oes_makespan_s)
    found = asdict(campaign) | {"seconds": round(time.perf_counter() - start, 2)}
    if not args.json:
        for name, figure in found.items():
            print(f"{name:28} {figure}")
    print(json.dumps(found))
    return int(campaign.theorem3_violations + campaign.delta_violations > 0)


if __name__ == "__main__":
    sys.exit(main())
