"""Line coverage of `src` by the tests that every change runs, in this or another checkout.

    python benchmarks/line_coverage.py --json --output benchmarks/results/line_coverage.json
    python benchmarks/line_coverage.py --json --tree PATH --python PATH/.venv/bin/python
    python benchmarks/line_coverage.py --quick --json

Needs `pip install coverage`. All processes are measured: test workers, tasks of runs, forked ones.
Processes that a test kills with SIGKILL do not count, nor lines of functions that numba compiles.
The last line is one JSON object: `percent`, `lines`, `missed`, the outcome of the tests, and the
percentage of each package. `--quick` runs the tests of `core` alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = """\
[run]
source = {source}
data_file = {folder}/data
parallel = true
concurrency = thread
sigterm = true
disable_warnings = couldnt-parse, no-data-collected, module-not-measured
patch =
    subprocess
    fork
    _exit
"""


def measure(tree: Path, python: Path, words: list[str]) -> dict[str, Any]:
    """Run the tests of a checkout."""
    source = tree / "src" / "headrace"
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "settings"
        settings.write_text(SETTINGS.format(source=source, folder=folder))
        start = [str(python), "-m", "coverage"]
        given = f"--rcfile={settings}"
        tests = [*start, "run", given, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words]
        done = subprocess.run(tests, cwd=tree, check=False, stdout=subprocess.PIPE, text=True)
        outcome = (done.stdout.strip().splitlines() or ["no output"])[-1]
        report = Path(folder) / "report.json"
        subprocess.run([*start, "combine", "-q", given], cwd=tree, check=True)
        subprocess.run([*start, "json", "-q", given, "-o", str(report)], cwd=tree, check=True)
        found = json.loads(report.read_text())
    packages: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, file in found["files"].items():
        inside = (tree / name).resolve().relative_to(source.resolve()).parts
        package = inside[0] if len(inside) > 1 else "headrace"
        packages[package][0] += file["summary"]["covered_lines"]
        packages[package][1] += file["summary"]["num_statements"]
    totals = found["totals"]
    return {
        "percent": round(totals["percent_covered"], 2),
        "lines": totals["num_statements"],
        "missed": totals["missing_lines"],
        "outcome": outcome,
        "exit_code": done.returncode,
        "packages": {
            name: round(100 * covered / max(num, 1), 1)
            for name, (covered, num) in sorted(packages.items())
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="the tests of core")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--tree", type=Path, default=ROOT, help="another checkout")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="its interpreter")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    parser.add_argument("words", nargs="*", help="options and paths for pytest, after --")
    args = parser.parse_args()
    words = args.words or (["tests/unit/core"] if args.quick else ["-n", "2"])
    begin_s = time.perf_counter()
    found = measure(args.tree.resolve(), args.python, words)
    document = {
        **found,
        "seconds": round(time.perf_counter() - begin_s, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/line_coverage.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 1 if found["exit_code"] else 0


if __name__ == "__main__":
    sys.exit(main())
