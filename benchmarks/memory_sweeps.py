"""A sweep against its trials one after the other, and killed sweeps, for `memory.py`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headrace.api.graph import partition

SCRIPT = Path(__file__).with_name("memory_sweep_script.py")
GRAPH = "generated:nodes=2e4,edges=4e5,features=64"
WIDTHS, RATES = (16, 32, 48, 64), (0.1, 0.03, 0.01)
NUM_KILLS = 50
STORE = "headrace.graph.store"
TASKS = (STORE, "headrace.graph.sampler_worker", "headrace.runtime.trainer")
LOOK_S = 0.02

Log = Callable[[str], None]


def run_sweeps(is_quick: bool, log: Log) -> dict[str, Any] | None:
    """Twelve trials in a sweep and one after the other; null if quick."""
    if is_quick:
        return None
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        scratch = Path(folder)
        partition(GRAPH, scratch / "parts", 2)
        single, begin_s = {}, time.monotonic()
        for width in WIDTHS:
            for rate in RATES:
                single[width, rate] = _run_alone(scratch, width, rate)
                log(f"width {width}, rate {rate}: {single[width, rate]}")
        alone_s = time.monotonic() - begin_s
        begin_s = time.monotonic()
        found = _finish(scratch, "together")
        together_s = time.monotonic() - begin_s
        log(f"one after the other {alone_s:.0f} s, sweep {together_s:.0f} s")
        return {
            "alone_s": alone_s,
            "together_s": together_s,
            "times_faster": alone_s / together_s,
            "are_equal": found == single,
        }


def run_sweep_kills(is_quick: bool, log: Log) -> dict[str, Any] | None:
    """Kills of sweeps, trials and their tasks, against an undisturbed sweep; null if quick."""
    if is_quick:
        return None
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        scratch = Path(folder)
        partition(GRAPH, scratch / "parts", 2)
        began_s = time.monotonic()
        expected = _finish(scratch, "undisturbed")
        return run_kills(scratch, expected, time.monotonic() - began_s, log, NUM_KILLS)


def run_kills(
    scratch: Path,
    expected: dict[tuple[int, float], str],
    undisturbed_s: float,
    log: Log,
    num_kills: int,
) -> dict[str, Any]:
    """Kill sweeps, trials, stores and other tasks at random times; finish; compare.

    A kill is of a kind that is drawn, as soon as there is a victim. A busy machine needs longer
    until there is one: times between kills follow the time of the undisturbed sweep.
    """
    rng = np.random.default_rng(0)
    num_done = num_sweeps = 0
    counts = {"sweep": 0, "trial": 0, "store": 0, "task": 0}
    wrong: list[str] = []
    while num_done < num_kills:
        name = f"killed-{num_sweeps}"
        num_sweeps += 1
        process = _start(scratch, name, new=True)
        while True:
            time.sleep(float(rng.uniform(0.02, 0.15)) * undisturbed_s)
            kind = str(rng.choice(list(counts)))
            victim = None
            while process.poll() is None and victim is None:
                if num_done < num_kills:
                    victim = _victim(kind, process.pid, scratch, rng)
                time.sleep(LOOK_S)
            if process.poll() is not None or victim is None:
                if process.returncode:
                    wrong.append(f"{name}: exit code {process.returncode}")
                break
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            counts[kind] += 1
            num_done += 1
            if kind == "sweep":
                process.wait()
                # One that was killed before it had written anything is no sweep yet.
                known = (scratch / "runs" / "sweeps" / name / "journal.jsonl").exists()
                process = _start(scratch, name, new=not known)
        found = _results(scratch / "runs" / "sweeps" / name)
        if found != expected:
            wrong.append(f"{name}: other results")
        ended = _ended(scratch / "runs" / "sweeps" / name)
        if sorted(ended) != list(range(len(expected))):
            wrong.append(f"{name}: trials ended {ended}")
        left = _left_over(scratch)
        if left:
            wrong.append(f"{name}: left {left}")
        log(f"{name}: {num_done} kills, wrong: {wrong}")
    return {"num_kills": num_done, "num_sweeps": num_sweeps, "counts": counts, "wrong": wrong}


def _words(width: int, rate: float) -> list[str]:
    return ["--set", f"width={width}", "--set", f"rate={rate}"]


def _run_alone(scratch: Path, width: int, rate: float) -> str:
    command = [sys.executable, "-m", "headrace", "run", "--local", "--graph", "parts", "--json"]
    done = subprocess.run(
        [*command, "--runs", "alone", *_words(width, rate), str(SCRIPT)],
        cwd=scratch,
        capture_output=True,
        text=True,
        check=True,
    )
    reports = json.loads(done.stdout.strip().splitlines()[-1])["reports"]
    return str(reports[-1]["figures"]["sum"] if "figures" in reports[-1] else reports[-1]["sum"])


def _start(scratch: Path, name: str, new: bool) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", "sweep", "--runs", "runs"]
    if new:
        command += ["--local", "--graph", "parts", "--name", name, "--parallel", "2"]
        command += ["--grid", "width=" + ",".join(map(str, WIDTHS))]
        command += ["--grid", "rate=" + ",".join(map(str, RATES))]
        command += ["--metric", "accuracy", str(SCRIPT)]
    else:
        command += ["--resume", name]
    with (scratch / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=scratch, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _finish(scratch: Path, name: str) -> dict[tuple[int, float], str]:
    process = _start(scratch, name, new=True)
    if process.wait():
        raise RuntimeError((scratch / f"{name}.log").read_text()[-2000:])
    return _results(scratch / "runs" / "sweeps" / name)


def _events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def _results(folder: Path) -> dict[tuple[int, float], str]:
    """Sum of all parameters of each trial, in full precision."""
    events = _events(folder)
    settings = {e["number"]: e["settings"] for e in events if e["kind"] == "made"}
    return {
        (settings[e["number"]]["width"], settings[e["number"]]["rate"]): str(
            e["figures"].get("sum")
        )
        for e in events
        if e["kind"] == "ended"
    }


def _ended(folder: Path) -> list[int]:
    return [event["number"] for event in _events(folder) if event["kind"] == "ended"]


def _victim(kind: str, sweep: int, scratch: Path, rng: np.random.Generator) -> int | None:
    """PID of the sweep, of a trial, a store, or a sampler or trainer, if there is one."""
    if kind == "sweep":
        return sweep
    if kind == "trial":
        found = _children(sweep)
    else:
        # Tasks are children of fork servers.
        wanted = (STORE,) if kind == "store" else TASKS[1:]
        found = [pid for pid, words in _processes(scratch) if any(each in words for each in wanted)]
    return int(rng.choice(sorted(found))) if found else None


def _children(pid: int) -> list[int]:
    try:
        return [int(w) for w in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _processes(scratch: Path) -> list[tuple[int, str]]:
    """Processes of headrace that work in the folder, and their commands."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            if os.readlink(path / "cwd").startswith(str(scratch)) and "headrace" in words:
                found.append((int(path.name), words))
        except OSError:
            continue
    return found


def _left_over(scratch: Path) -> list[str]:
    """Processes that work in the folder and were not awaited."""
    deadline_s = time.monotonic() + 60.0
    while True:
        left = [words[:100] for _, words in _processes(scratch)]
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.5)
