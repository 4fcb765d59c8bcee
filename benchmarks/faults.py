"""Kill tasks of a run: it must recover and end with the same parameters as an undisturbed run.

    python benchmarks/faults.py --trials 60 --seed 0 --output benchmarks/results/faults.json
    python benchmarks/faults.py --quick --json
    python benchmarks/faults.py --cut 10 --cut 300 --output benchmarks/results/faults.json

On an emulated cluster of four machines (needs root and iproute2) every trial is a real training,
with a ring or with parameter servers, with dropout, with a checkpoint every 15 steps. A store, a
sampler, a trainer, a parameter server, a raylet or the driver is killed with SIGKILL while the run
starts, trains or writes a checkpoint; the seed determines which one and when. A run that lost its
driver is resumed with `headrace run --resume`. With `--cut` the network between two machines is cut
instead. With `--more` the faults are others: a process of each role, a task actor or the driver is
stopped by SIGSTOP (the driver for 40 s); the disk of a role or of the driver is full; the head of
the Ray cluster is killed; two tasks are killed within 3 s. Such a run may also end, within 60 s,
with the right message, status and exit code (`ended_s`, `state`, `error`).

Each trial has the decisions of the driver (`decisions`), the seconds to the first message about the
fault, the longest time without a message or an iteration (`silence_s`, at most 15), the seconds to
the first step after recovery (`recovery_s`; for a driver, since it was resumed), whether parameters
and optimizer state are bit-identical to those of the undisturbed run (`is_same`; for a run on other
machines `difference`, at most 1e-4), what was left behind, and all violations (`problems`).
`in_checkpoint` tells whether a checkpoint was being written at the time.

The file is written after every trial. Trials that it contains are not repeated, so a campaign can
be interrupted and resumed. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from headrace.testbed import Testbed, take_down
from tests.support.cluster_bed import make_cluster
from tests.support.fault_trials import SILENCE_S, Case, Trials, draw, draw_cut, write
from tests.support.more_faults import MORE_KINDS, MoreTrials, draw_more, small_disks

QUICK = 6


def summary(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """All trials in a few figures."""
    by_kind: dict[str, list[float]] = {}
    for each in trials:
        if each.get("recovery_s") is not None:
            by_kind.setdefault(each["kind"], []).append(each["recovery_s"])
    others = [each for each in trials if len(each.get("machines", ())) < 4]
    return {
        "trials": len(trials),
        "failed": {each["number"]: each["problems"] for each in trials if each["problems"]},
        "kinds": dict(Counter(each["kind"] for each in trials)),
        "moments": dict(Counter(each["moment"] for each in trials)),
        "in_checkpoint": sum(bool(each.get("in_checkpoint")) for each in trials),
        "same_to_the_last_bit": sum(bool(each.get("is_same")) for each in trials),
        "on_other_machines": len(others),
        "largest_difference": max((each.get("difference", 0.0) for each in trials), default=None),
        "longest_silence_s": max((each["silence_s"] for each in trials), default=None),
        "allowed_silence_s": SILENCE_S,
        "first_message_s": max((each["first_message_s"] or 0.0 for each in trials), default=None),
        "recovery_s": {
            kind: {"median": sorted(times)[len(times) // 2], "most": max(times)}
            for kind, times in sorted(by_kind.items())
        },
        "left_behind": sum(len(each["left"]) for each in trials),
    }


def summary_more(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """All trials with other faults than a kill in a few figures."""
    return {
        "trials": len(trials),
        "failed": {each["number"]: each["problems"] for each in trials if each["problems"]},
        "kinds": dict(Counter(each["kind"] for each in trials)),
        "same_to_the_last_bit": sum(bool(each.get("is_same")) for each in trials),
        "ended_with_an_error": sum(bool(each["code"]) for each in trials),
        "longest_end_s": max((e["ended_s"] for e in trials if e["code"]), default=None),
        "longest_silence_s": max((each["silence_s"] for each in trials), default=None),
        "allowed_silence_s": SILENCE_S,
        "left_behind": sum(len(each["left"]) for each in trials),
    }


def load(path: Path | None, seed: int) -> dict[str, Any]:
    """The campaign so far."""
    if path is not None and path.exists():
        found: dict[str, Any] = {"more": []} | json.loads(path.read_text())
        if found["seed"] != seed:
            raise SystemExit(f"{path} is of seed {found['seed']}")
        return found
    return {
        "benchmark": "faults",
        "seed": seed,
        "commands": [],
        "trials": [],
        "cuts": [],
        "more": [],
    }


def wanted_cases(args: argparse.Namespace, known: dict[str, Any]) -> list[Case]:
    """What is to be done, and was not."""
    if args.cut:
        first = len(known["cuts"])
        return [
            draw_cut(args.seed, first + i, seconds, args.between)
            for i, seconds in enumerate(args.cut)
        ]
    done = {each["number"] for each in known["more" if args.more else "trials"]}
    numbers = range(args.first, QUICK if args.quick else args.trials)
    if args.more:
        drawn = [draw_more(args.seed, number, args.kind) for number in numbers]
        return [case for case in drawn if case.number not in done]
    return [draw(args.seed, number) for number in numbers if number not in done]


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=60, help="of the whole campaign (60)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one (0)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of victims and times (0)")
    parser.add_argument("--quick", action="store_true", help=f"the first {QUICK} trials")
    parser.add_argument("--cut", type=float, action="append", help="seconds without network")
    parser.add_argument("--more", action="store_true", help="other faults than a kill")
    parser.add_argument("--kind", choices=MORE_KINDS, help="with --more: only this one")
    parser.add_argument("--between", help="machines to separate, like m1,m2; drawn by default")
    parser.add_argument("--within", type=float, help="begin no trial after so many seconds")
    parser.add_argument("--scratch", type=Path, help="folder for runs; failed ones are kept")
    parser.add_argument("--output", type=Path, help="result file to write or to continue")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the testbed down
    begin_s = time.monotonic()
    document = load(args.output, args.seed)
    document["commands"].append("python benchmarks/faults.py " + " ".join(sys.argv[1:]))
    document |= {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": describe_machine()}

    def log(line: str) -> None:
        print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)

    scratch = args.scratch or Path(tempfile.mkdtemp(prefix="headrace-faults-"))
    scratch.mkdir(parents=True, exist_ok=True)
    name = f"faults-{os.getpid()}"
    parts, kept = ExitStack(), "cuts" if args.cut else "more" if args.more else "trials"
    try:
        if args.more:
            parts.enter_context(small_disks(name, scratch))
        parts.callback(take_down, name)
        bed = Testbed.up(make_cluster(), name)
        if args.more:
            trials: Trials = parts.enter_context(closing(MoreTrials(bed, scratch, log)))
        else:
            trials = Trials(bed, scratch, log)
        for case in wanted_cases(args, document):
            if args.within is not None and time.monotonic() - begin_s > args.within:
                break
            found = trials.trial(case)
            document[kept].append(found)
            document["summary"] = summary(document["trials"])
            if args.more:
                document["summary_more"] = summary_more(document["more"])
            if args.output:
                write(args.output, document)
            log(f"{case.number}: {found['problems'] or 'well'} ({found['elapsed_s']} s)")
            if not args.json:
                print(json.dumps(found), flush=True)
    finally:
        parts.close()
        if args.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)
    print(json.dumps(document))
    every = document["trials"] + document["cuts"] + document["more"]
    return 1 if any(each["problems"] for each in every) else 0


if __name__ == "__main__":
    sys.exit(main())
