"""Run the tests of kernels and wrong requests with every index of compiled code checked.

    python benchmarks/bounds.py --json --output benchmarks/results/bounds.json
    python benchmarks/bounds.py --quick --json

numba does not check indices unless `NUMBA_BOUNDSCHECK=1` is set. Kernels are compiled again for
this, into a folder of their own, which takes minutes. The tests are those of all packages with
kernels; the requests are those of `fuzz.py`. The last line is one JSON object: `checks`, whether an
index outside of an array is reported at all; `tests`, the outcome of pytest; `requests` and `wrong`
of `fuzz.py`; `outside`, the number of indices outside of an array, which has to be 0. `--quick`
runs the tests of one kernel and no request.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("unit/graph", "unit/policies", "unit/simulator", "unit/planner", "contract", "property")
NOT_HERE = "tests/unit/simulator/test_interpreted.py"
"""Its kernels are cached elsewhere than in the folder of this program."""
QUICK_TESTS = ("unit/graph/test_vertex_cover.py",)
NUM_REQUESTS = 10_000
OUTSIDE = "index is out of bounds"
"""What numba's error says."""

PROBE = """
import numpy as np
from headrace.policies.compiled import hot_loop

@hot_loop
def outside(values):
    return values[len(values)]

try:
    outside(np.zeros(3))
except IndexError as error:
    print(error)
"""


def _run(words: Sequence[str], environment: Mapping[str, str], quiet: bool) -> tuple[int, str]:
    """Exit code and output of a Python program."""
    lines = []
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if not quiet:
            print(line, end="", flush=True)
    return process.wait(), "".join(lines)


def run(is_quick: bool, workers: int, quiet: bool) -> dict[str, Any]:
    """Run tests and requests; what came of them."""
    with tempfile.TemporaryDirectory(prefix="headrace-bounds-") as cache:
        environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": cache}
        program = Path(cache) / "probe.py"
        program.write_text(PROBE)
        _, probe = _run([str(program)], environment, quiet=True)
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
        words += ["--ignore", NOT_HERE]
        words += [f"tests/{name}" for name in (QUICK_TESTS if is_quick else TESTS)]
        exit_code, tests = _run(words, environment, quiet)
        found: dict[str, Any] = {
            "checks": OUTSIDE in probe,
            "tests": tests.strip().rsplit("\n", 1)[-1].strip("= "),
            "exit_code": exit_code,
            "requests": 0,
            "wrong": [],
            "outside": tests.count(OUTSIDE),
        }
        if not is_quick:
            words = ["benchmarks/fuzz.py", "--json", "--requests", str(NUM_REQUESTS)]
            _, fuzzed = _run(words, environment, quiet)
            document = json.loads(fuzzed.strip().rsplit("\n", 1)[-1])
            found["requests"], found["wrong"] = document["num_requests"], document["wrong"]
            found["outside"] += fuzzed.count(OUTSIDE)
    return found


def main() -> int:
    """Run them, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="the tests of one kernel")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest (2)")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    began_s = time.perf_counter()
    document = {
        **run(args.quick, args.workers, args.json),
        "seconds": round(time.perf_counter() - began_s, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/bounds.py " + " ".join(sys.argv[1:]),
        "is_quick": args.quick,
    }
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    is_fine = document["checks"] and not document["exit_code"] and not document["wrong"]
    return 0 if is_fine and not document["outside"] else 1


if __name__ == "__main__":
    sys.exit(main())
