"""Run every test that a change's checks leave out, and keep what came of each.

    python benchmarks/campaign.py --json --output benchmarks/results/campaign.json
    python benchmarks/campaign.py --quick --json

These are tests with the marker `campaign`: statistical campaigns, all kinds of faults on the
emulated cluster (root and iproute2), pages of the documentation, large graphs, and properties with
more examples. `--only` takes an
expression of pytest's `-k`; `--quick` runs a few that take seconds. The last line is one JSON
object: `passed`, `failed`, `skipped`, and per test its outcome and seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from tests.support.examples import CAMPAIGN_VARIABLE

ROOT = Path(__file__).resolve().parents[1]
QUICK = "test_bound_holds_at_the_peak_on_many or test_adjacency_equals_counted_pairs_on_many"


def run(only: str | None, workers: int, quiet: bool) -> dict[str, Any]:
    """Run them; what came of each."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "campaign", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", "-n", str(workers)]
        command += ["-k", only] if only else []
        output = subprocess.DEVNULL if quiet else None
        environment = {**os.environ, CAMPAIGN_VARIABLE: "1"}
        done = subprocess.run(command, cwd=ROOT, stdout=output, env=environment, check=False)
        if not report.exists():
            raise RuntimeError(f"pytest ended with {done.returncode} and has written no report")
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    tests = {f"{case.get('classname')}::{case.get('name')}": _result(case) for case in cases}
    counts = Counter(each["outcome"] for each in tests.values())
    return {
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "exit_code": done.returncode,
        "tests": tests,
    }


def _result(case: ElementTree.Element) -> dict[str, Any]:
    tags = {child.tag for child in case}
    outcome = "failed" if tags & {"failure", "error"} else "passed"
    if "skipped" in tags:
        outcome = "skipped"
    return {"outcome": outcome, "seconds": round(float(case.get("time", 0)), 1)}


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a few that take seconds")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--only", help="an expression of pytest's -k")
    parser.add_argument("--workers", type=int, default=2, help="processes (2)")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    began_s = time.perf_counter()
    found = run(args.only or (QUICK if args.quick else None), args.workers, args.json)
    document = {
        **found,
        "seconds": round(time.perf_counter() - began_s, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/campaign.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 1 if found["failed"] or found["exit_code"] else 0


if __name__ == "__main__":
    sys.exit(main())
