"""Train for an hour and more under random faults, and watch what grows.

    python benchmarks/soak.py --segments 2 --minutes 60 --json --output benchmarks/results/soak.json
    python benchmarks/soak.py --quick --json

Needs root and iproute2. One run trains on a testbed of four machines with parameter servers, while
tasks and task actors are killed, tasks are stopped by SIGSTOP, and machines are cut off from each
other, all at random times drawn from the seed. A segment ends with Ctrl-C; the next one resumes the
run. With `--output` segments are added to the file until there are `--segments`, so a campaign can
be continued after an interruption. The last line is one JSON object. Each segment has:

- `faults`, by kind and with the seconds until the next iteration was done (`recovery_s`),
- `iterations`, and the longest time without a message or an iteration (`silence_s`),
- `growth` per hour of processes that live for at least half of the segment, by kind: anonymous and
  shared memory, descriptors, threads (median over processes, slope after the first five minutes),
- `disk`: bytes per hour of the run's folder and of the machines' temporary folders,
- `left`: processes and files that are there after the end, and `problems`, which should be empty.

`--quick` is a segment of half a minute with one fault.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from headrace.api.graph import partition
from headrace.testbed import Testbed, machines, take_down
from tests.support.cluster_bed import MACHINES, Run, make_cluster, make_plan, processes
from tests.support.cluster_checks import left_over
from tests.support.fault_trials import BATCH_SIZE, CONFIG, GRAPH, INTERRUPTED, LAYOUT
from tests.support.fault_victims import cut, left_files, victims
from tests.support.fault_watch import Watch

ROLES = ("store", "sampler", "trainer", "ps")
KINDS = (*(f"kill {role}" for role in (*ROLES, "actor")), *(f"freeze {role}" for role in ROLES))
CUT = "cut"
EVERY, PAUSE_S, STEPS = 60, 0.2, 10**7
MEAN_S, FIRST_S = 75.0, 45.0
SAMPLE_S, WARM_S = 10.0, 300.0
PATIENCE_S, SILENCE_S = 300.0, 15.0


def log(line: str) -> None:
    """Log a line with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


def count(pid: int) -> tuple[int, int]:
    """Descriptors and threads of a process."""
    entry = Path(f"/proc/{pid}")
    return len(os.listdir(entry / "fd")), len(os.listdir(entry / "task"))


def used_bytes(folder: Path) -> int:
    """Bytes of the files below a folder."""
    total = 0
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(above) / name).lstat().st_blocks * 512
    return total


class Samples:
    """What processes and folders use over time."""

    def __init__(self, bed: Testbed) -> None:
        self._bed = bed
        self._of: dict[tuple[str, int], list[tuple[float, ...]]] = defaultdict(list)
        self._disk: list[tuple[float, float, float]] = []

    def take(self, at_s: float, run: Path) -> None:
        """Take a sample."""
        for pid, seen in processes(self._bed).items():
            with suppress(OSError):
                self._of[seen.kind, pid].append((at_s, seen.own_bytes, *count(pid)))
        tmp = sum(used_bytes(machines.tmp_folder(host)) for host in self._bed.hosts)
        self._disk.append((at_s, used_bytes(run), tmp))

    def growth(self, length_s: float) -> dict[str, Any]:
        """Per hour, by kind; the median of processes that live long enough."""
        warm_s = min(WARM_S, length_s / 4)
        slopes: dict[str, list[np.ndarray]] = defaultdict(list)
        for (kind, _), rows in self._of.items():
            kept = np.array([row for row in rows if row[0] >= warm_s])
            if len(kept) > 2 and kept[-1, 0] - kept[0, 0] >= length_s / 2 - warm_s:
                slopes[kind].append(per_hour(kept))
        names = ("bytes", "descriptors", "threads")
        return {
            kind: {
                "processes": len(each),
                **dict(zip(names, np.median(each, axis=0).round(2).tolist(), strict=True)),
            }
            for kind, each in sorted(slopes.items())
        }

    def disk(self) -> dict[str, float]:
        """Bytes per hour."""
        if len(self._disk) < 3:
            return {}
        run, tmp = per_hour(np.array(self._disk))
        return {"run": float(run), "machines": float(tmp)}


def per_hour(rows: np.ndarray) -> np.ndarray:
    """Slopes of the columns over the first, in seconds."""
    slopes: np.ndarray = np.polyfit(rows[:, 0] - rows[0, 0], rows[:, 1:], 1)[0] * 3600
    return slopes


class Segment:
    """A part of the run.

    Args:
        bed: Where it runs.
        scratch: Folder of the graph and of the run.
        number: Of the segment; the first one starts the run.
    """

    def __init__(self, bed: Testbed, scratch: Path, seed: int, number: int) -> None:
        self._bed, self._scratch, self._number = bed, scratch, number
        self._rng = random.Random(f"soak {seed} {number}")
        self._samples = Samples(bed)
        self._faults: list[dict[str, Any]] = []
        self._cut_until_s: dict[tuple[str, str], float] = {}

    def run(self, length_s: float, mean_s: float) -> dict[str, Any]:
        """Train for a while, then interrupt."""
        before = left_files(self._bed)
        watch = self._start()
        problems = []
        if not watch.wait(lambda: watch.iterations > 0, PATIENCE_S):
            problems.append("it did not start")
        began_s, first = time.monotonic(), watch.iterations
        due_s, sample_s = began_s + min(FIRST_S, mean_s / 2), began_s
        while watch.look() and time.monotonic() < began_s + length_s:
            now_s = time.monotonic()
            for pair in [pair for pair, end_s in self._cut_until_s.items() if now_s >= end_s]:
                self._mend(pair)
            self._recovered(watch)
            if now_s >= due_s and self._inject(watch):
                due_s = now_s + min(self._rng.expovariate(1 / mean_s), 4 * mean_s)
            if now_s >= sample_s and watch.folder is not None:
                self._samples.take(now_s - began_s, watch.folder)
                sample_s = now_s + SAMPLE_S
            time.sleep(0.2)
        for pair in list(self._cut_until_s):
            self._mend(pair)
        # Nothing happens while the last fault is recovered from.
        watch.wait(lambda: self._recovered(watch), PATIENCE_S)
        problems += self._end(watch)
        silence_s = watch.silence_s(began_s)
        left = left_over(self._bed) + sorted(left_files(self._bed) - before)
        if silence_s > SILENCE_S:
            problems.append(f"nothing was said for {silence_s} s")
        if left:
            problems.append("something is left behind")
        if any(each["recovery_s"] is None for each in self._faults):
            problems.append("it did not go on after a fault")
        if any("Traceback" in line for _, line in watch.lines):
            problems.append("it printed a traceback")
        passed_s = time.monotonic() - began_s
        found = {
            "number": self._number,
            "seconds": round(passed_s, 1),
            "iterations": watch.iterations - first,
            "num_faults": len(self._faults),
            "by_kind": dict(sorted(Counter(each["kind"] for each in self._faults).items())),
            "silence_s": silence_s,
            "growth": self._samples.growth(length_s),
            "disk": self._samples.disk(),
            "left": left,
            "faults": self._faults,
            "problems": problems,
        }
        if problems:
            found["said"] = [f"{at - began_s:.1f} {line}" for at, line in watch.lines][-200:]
        return found

    def _start(self) -> Watch:
        folder = self._scratch / "run"
        if not self._number:
            graph = self._scratch / "graph"
            partition(GRAPH, graph, len(MACHINES))
            config = {**CONFIG, "steps": STEPS, "pause_s": PAUSE_S, "dropout": 0.5}
            options = ("--checkpoint-every", str(EVERY))
            run = Run(
                self._bed, make_plan(LAYOUT["ps"], BATCH_SIZE), graph, folder, config, options
            )
            run.log.close()
            return Watch(run.process, folder / "errors", run.runs)
        (newest,) = (folder / "runs").glob("2*")
        words = [sys.executable, "-m", "headrace", "run", "--resume", newest.name, "--json"]
        words += ["--runs", str(folder / "runs")]
        errors = folder / f"errors-{self._number}"
        with errors.open("w") as file:
            process = subprocess.Popen(
                self._bed.command("m0", words),
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
                text=True,
            )
        return Watch(process, errors, folder / "runs")

    def _inject(self, watch: Watch) -> bool:
        """Do something to the run, unless it still recovers; whether something was done."""
        if not self._recovered(watch):
            return False
        kind = self._rng.choice((*KINDS, CUT))
        fault = {"kind": kind, "at": watch.iterations, "recovery_s": None}
        if kind == CUT:
            one, other = self._rng.sample(MACHINES, 2)
            length_s = self._rng.uniform(1, 40)
            cut(self._bed, one, other, is_cut=True)
            self._cut_until_s[one, other] = time.monotonic() + length_s
            fault |= {"victim": f"{one} - {other}", "cut_s": round(length_s, 1)}
        else:
            how, _, role = kind.partition(" ")
            choices = victims(self._bed, role)
            if not choices:
                return False
            victim = self._rng.choice(choices)
            os.kill(victim.pid, signal.SIGKILL if how == "kill" else signal.SIGSTOP)
            fault["victim"] = str(victim)
        fault["since_s"] = time.monotonic()
        self._faults.append(fault)
        log(f"{kind}: {fault['victim']} at iteration {watch.iterations}")
        return True

    def _recovered(self, watch: Watch) -> bool:
        """Whether the run has done ten iterations since the last fault, and no cut lasts."""
        if self._cut_until_s:
            return False
        if not self._faults:
            return True
        fault = self._faults[-1]
        if fault["recovery_s"] is None:
            # After a restart of the run the number goes back to the checkpoint's.
            moved = [at_s for at_s in watch.moved_s if at_s > fault["since_s"]]
            if watch.iterations < fault["at"] + 10 or not moved:
                return False
            fault["recovery_s"] = round(moved[-1] - fault.pop("since_s"), 1)
        return True

    def _mend(self, pair: tuple[str, str]) -> None:
        cut(self._bed, *pair, is_cut=False)
        del self._cut_until_s[pair]

    def _end(self, watch: Watch) -> list[str]:
        if not watch.look():
            return [f"it ended with {watch.process.returncode}"]
        for driver in victims(self._bed, "driver"):
            os.kill(driver.pid, signal.SIGINT)
        if not watch.end(PATIENCE_S):
            watch.process.kill()
            return ["it does not end"]
        code, state = watch.process.returncode, watch.status()["state"]
        return [] if (code, state) == (INTERRUPTED, "interrupted") else [f"{state}, code {code}"]


def main() -> int:
    """Run segments, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--quick", action="store_true", help="half a minute")
    parser.add_argument("--segments", type=int, default=2, help="in all (2)")
    parser.add_argument("--minutes", type=float, default=60.0, help="length of a segment (60)")
    parser.add_argument("--mean-s", type=float, default=MEAN_S, help="between faults (75)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="result file to write, or to add to")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # takes the testbed down
    num, length_s, mean_s = args.segments, 60 * args.minutes, args.mean_s
    if args.quick:
        num, length_s, mean_s = 1, 15.0, 6.0
    known: dict[str, Any] = {"segments": []}
    if args.output is not None and args.output.exists():
        known = json.loads(args.output.read_text())
    done = len(known["segments"])
    name = f"soak-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="hr-soak-") as scratch:
        try:
            if done < num:
                bed = Testbed.up(make_cluster(), name, log=log)
            for number in range(num - done):
                found = Segment(bed, Path(scratch), args.seed + done, number).run(length_s, mean_s)
                found["number"] = done + number
                known["segments"].append(found)
                document = _document(known)
                if args.output is not None:
                    args.output.write_text(json.dumps(document, indent=1) + "\n")
        finally:
            take_down(name)
    print(json.dumps(_document(known)))
    return 1 if any(each["problems"] for each in known["segments"]) else 0


def _document(known: dict[str, Any]) -> dict[str, Any]:
    segments = known["segments"]
    return {
        "num_faults": sum(each["num_faults"] for each in segments),
        "hours": round(sum(each["seconds"] for each in segments) / 3600, 3),
        "silence_s": max((each["silence_s"] for each in segments), default=0.0),
        "num_problems": sum(len(each["problems"]) for each in segments),
        "segments": segments,
        "benchmark": "soak",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/soak.py " + " ".join(sys.argv[1:]),
        "machine": describe_machine(),
    }


if __name__ == "__main__":
    sys.exit(main())
