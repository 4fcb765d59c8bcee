"""Run the benchmarks of two checkouts beside each other and compare their figures.

    git worktree add ../before COMMIT          # and a virtual environment in ../before/.venv
    python benchmarks/beside.py --before ../before --after . --output result.json
    python benchmarks/beside.py --before ../before --after . --only planner --json

Each benchmark that both checkouts have runs with `--quick` in one and then in the other, `--rounds`
times. A checkout is run by the Python in its own `.venv`, or by the one that runs this command.

The last line is one JSON object. `benchmarks` has for each of them the seconds it took, the number
of figures in its result, and the figures that are `outside`: no value of one checkout is between
two values of the other, and the medians differ by more than `--noise`. These have the values of
both checkouts and `ratio`, the quotient of their medians. `failed` lists benchmarks that ended with
an error. The file is written after each benchmark; benchmarks that it contains are not run again
unless named by `--only`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine

LIMIT_S = 900
QUICK = "planner"
SKIPPED = frozenset({"machine", "date", "command", "seed"})


def names(tree: Path) -> set[str]:
    """Benchmarks of a checkout that have `--quick`."""
    return {
        path.stem for path in tree.glob("benchmarks/*.py") if '"--quick"' in path.read_text()
    } - {"beside"}


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a JSON object with their paths."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key not in SKIPPED:
                yield from flatten(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, each in enumerate(value):
            yield from flatten(each, f"{path}[{i}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, float(value)


def run(tree: Path, name: str) -> dict[str, Any]:
    """One benchmark of a checkout: seconds and figures, or the end of its output."""
    python = tree / ".venv" / "bin" / "python"
    command = [str(python if python.exists() else sys.executable), f"benchmarks/{name}.py"]
    start_s = time.monotonic()
    try:
        done = subprocess.run(
            [*command, "--quick", "--json"],
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        last = (done.stdout.strip().splitlines() or [""])[-1]
        result: dict[str, Any] = {"figures": dict(flatten(json.loads(last)))}
        if done.returncode:
            result = {"error": done.stderr[-2000:]}
    except subprocess.TimeoutExpired:
        result = {"error": f"not done after {LIMIT_S} s"}
    except json.JSONDecodeError:
        result = {"error": (done.stdout + done.stderr)[-2000:]}
    return {"seconds": round(time.monotonic() - start_s, 1), **result}


def is_outside(before: list[float], after: list[float], noise: float) -> bool:
    """Whether the two ranges are disjoint and the medians differ by more than the noise."""
    if max(before) >= min(after) and max(after) >= min(before):
        return False
    one, other = median(before), median(after)
    return abs(one - other) > noise * max(abs(one), abs(other))


def compare(
    before: list[dict[str, Any]], after: list[dict[str, Any]], noise: float
) -> dict[str, Any]:
    """The figures that both checkouts have, and those that differ."""
    figures: dict[str, Any] = {}
    for key in before[0]["figures"]:
        one = [each["figures"][key] for each in before if key in each["figures"]]
        other = [each["figures"][key] for each in after if key in each["figures"]]
        if other:
            ratio = median(other) / median(one) if median(one) else None
            figures[key] = {
                "before": one,
                "after": other,
                "ratio": None if ratio is None else round(ratio, 4),
                "outside": is_outside(one, other, noise),
            }
    return {
        "seconds": {
            "before": [each["seconds"] for each in before],
            "after": [each["seconds"] for each in after],
        },
        "num_figures": len(figures),
        "outside": {
            key: {name: each[name] for name in ("before", "after", "ratio")}
            for key, each in figures.items()
            if each["outside"]
        },
    }


def commit_of(tree: Path) -> str:
    """Short commit of a checkout."""
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="checkout to compare with")
    parser.add_argument("--after", type=Path, default=Path(), help="checkout to compare (.)")
    parser.add_argument("--only", action="append", help="name of a benchmark; may be repeated")
    parser.add_argument("--rounds", type=int, default=1, help="runs in each checkout (1)")
    parser.add_argument("--noise", type=float, default=0.1, help="difference to ignore (0.1)")
    parser.add_argument("--quick", action="store_true", help=f"the same as --only {QUICK}")
    parser.add_argument("--output", type=Path, help="result file to write or to continue")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    args = parser.parse_args()
    trees = {"before": args.before.resolve(), "after": args.after.resolve()}
    result: dict[str, Any] = {
        "benchmark": "beside",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": describe_machine(),
        "command": f"python benchmarks/beside.py --rounds {args.rounds} --noise {args.noise}",
        "commits": {side: commit_of(tree) for side, tree in trees.items()},
        "benchmarks": {},
        "failed": {},
    }
    if args.output and args.output.exists():
        old = json.loads(args.output.read_text())
        result["benchmarks"], result["failed"] = old["benchmarks"], old["failed"]
    chosen = [QUICK] if args.quick else args.only
    for name in sorted(names(trees["before"]) & names(trees["after"])):
        if (name not in chosen) if chosen else (name in result["benchmarks"]):
            continue
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in trees}
        for _ in range(args.rounds):
            for side, tree in trees.items():
                runs[side].append(run(tree, name))
                if not args.json:
                    print(f"{name} {side}: {runs[side][-1]['seconds']} s", flush=True)
        result["failed"].pop(name, None)
        wrong = {side: each["error"] for side in trees for each in runs[side] if "error" in each}
        if wrong:
            result["failed"][name] = wrong
        else:
            result["benchmarks"][name] = compare(runs["before"], runs["after"], args.noise)
            if not args.json:
                print(f"  outside: {list(result['benchmarks'][name]['outside'])}", flush=True)
        if args.output:
            args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
