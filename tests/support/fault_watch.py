"""A disturbed run, seen from outside: what it says and when, how it moves, what it ends with."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

LOOK_S = 0.05


class Watch:
    """Follows a `headrace run`.

    Args:
        process: Of the driver, or of who started it.
        errors: File with what it says.
        runs: Folder with its run's folder.

    Attributes:
        lines: What it said, and when.
        moved_s: When its iterations were seen to change.
        iterations: Those that are done.
    """

    def __init__(self, process: subprocess.Popen[str], errors: Path, runs: Path) -> None:
        self.process, self._errors, self._runs = process, errors, runs
        self.began_s = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self.moved_s: list[float] = []
        self.iterations = 0
        self._num_read = 0

    @property
    def folder(self) -> Path | None:
        """Of the run, once it has one."""
        found = sorted(self._runs.glob("2*"))
        return found[-1] if found else None

    def status(self) -> dict[str, Any]:
        """What the run says of itself; nothing before it has a folder."""
        if self.folder is None:
            return {}
        found: dict[str, Any] = json.loads((self.folder / "status.json").read_text())
        return found

    def look(self) -> bool:
        """Take note of what is new; whether the run goes on."""
        is_alive = self.process.poll() is None
        now_s = time.monotonic()
        with self._errors.open("rb") as file:
            file.seek(self._num_read)
            *whole, _ = file.read().split(b"\n")
        for line in whole:
            self._num_read += len(line) + 1
            self.lines.append((now_s, line.decode(errors="replace")))
        iterations = self.status().get("iterations", 0)
        if iterations != self.iterations:
            self.iterations = iterations
            self.moved_s.append(now_s)
        return is_alive

    def wait(self, condition: Callable[[], object], timeout_s: float) -> bool:
        """Wait until something is so; false if the run ends before, or the time does."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s and self.look():
            if condition():
                return True
            time.sleep(LOOK_S)
        return False

    def end(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came."""
        end_s = time.monotonic() + timeout_s
        while self.look():
            if time.monotonic() > end_s:
                return False
            time.sleep(LOOK_S)
        return True

    def first_s(self, since_s: float, words: Iterable[str] = ()) -> float | None:
        """How long it took to say something, with one of some words if any are given."""
        wanted = tuple(words)
        for at_s, line in self.lines:
            if at_s >= since_s and (not wanted or any(word in line for word in wanted)):
                return round(at_s - since_s, 2)
        return None

    def silence_s(self, since_s: float) -> float:
        """The longest time in which it neither said something nor did an iteration."""
        signs = [at_s for at_s, _ in self.lines] + self.moved_s
        times = sorted([since_s, *(at_s for at_s in signs if at_s > since_s)])
        return round(max((b - a for a, b in pairwise(times)), default=0.0), 2)


def step_ends(folder: Path) -> list[float]:
    """When trainers ended their steps, in all attempts of a run; machines share a clock."""
    found = []
    for path in folder.rglob("trace-trainer*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record[0] == "exec":
                found.append(float(record[4]))
    return sorted(found)


def recovery_s(ends: Iterable[float], since_s: float) -> float | None:
    """From a fault to the end of the longest pause between steps after it."""
    times = [since_s, *(end_s for end_s in ends if end_s > since_s)]
    gaps = [(b - a, b) for a, b in pairwise(times)]
    return round(max(gaps)[1] - since_s, 2) if gaps else None


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Those of a run; the last line may be half of one if the driver was killed."""
    found = []
    for line in (folder / "events.jsonl").read_text().splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if event["kind"] == kind:
            found.append(event)
    return found


def end_of(folder: Path) -> tuple[int, dict[str, Any]]:
    """Steps of a run that is over, and what it had learned, by its last checkpoint."""
    from headrace.training.checkpoint_files import load, newest_whole

    newest = newest_whole(folder / "checkpoints")
    if newest is None:
        raise RuntimeError(f"{folder} has no whole checkpoint")
    sidecar, state = load(newest.path)
    return sidecar.iteration, state


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest of two models' parameters."""
    ours, theirs = one["model"], other["model"]
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


def is_same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the last bit."""
    import torch

    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)
