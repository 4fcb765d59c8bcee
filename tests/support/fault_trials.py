"""One fault after the other on a testbed: what a run does about it, and what it ends with."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from headrace.api.graph import partition
from headrace.runtime.run_dir.temp_dirs import PREFIX
from headrace.testbed import Testbed, machines
from headrace.training.checkpoint_files import newest_whole
from tests.support.cluster_bed import MACHINES, Layout, Run, make_plan, processes
from tests.support.cluster_checks import left_over
from tests.support.fault_victims import KINDS, Victim, cut, left_files, start_raylet, victims
from tests.support.fault_watch import (
    Watch,
    difference,
    end_of,
    events,
    is_same,
    recovery_s,
    step_ends,
)

MOMENTS = ("start", "training", "checkpoint")
GRAPH = "generated:nodes=2e4,edges=2e5,features=16"
CONFIG = {"task": "epochs", "features": 16, "classes": 16, "width": 16, "fanouts": [5, 5]}
STEPS, EVERY, BATCH_SIZE = 144, 15, 12
PAUSE_S = 0.03
BALLAST = 2_000_000
"""Numbers in every checkpoint, so that it takes a while to write it."""

LAYOUT = {
    "ring": Layout(trainers=("m1", "m2"), samplers=("m3", "m2")),
    "ps": Layout(trainers=("m1", "m2"), samplers=("m3", "m2"), servers=("m0", "m3")),
}
SILENCE_S = 15.0
CLOSE = 1e-4
PATIENCE_S = 240.0
INTERRUPTED = 130
"""Exit code after Ctrl-C."""


@dataclass(frozen=True)
class Case:
    """What happens in a trial.

    Attributes:
        number: Of the trial.
        kind: Who is killed; `network` for a cut.
        moment: One of `MOMENTS`.
        sync: `ring` or `ps`.
        choice: Which of several, from 0 to 1.
        iteration: Not before.
        delay_s: How long after that.
        seconds: How long a cut lasts.
        between: Whom it parts.
        interrupt_at: Iteration after which the run is interrupted and resumed, before all this.
    """

    number: int
    kind: str
    moment: str
    sync: str
    choice: float
    iteration: int
    delay_s: float
    seconds: float = 0.0
    between: tuple[str, str] | None = None
    interrupt_at: int | None = None

    @property
    def dropout(self) -> float:
        """Who drops which activation depends on the machines, which may become others."""
        return 0.0 if self.kind in ("raylet", "network") else 0.5


def draw(seed: int, number: int) -> Case:
    """A trial: six in a row have all kinds of victims, eighteen have them at all moments."""
    block, place = divmod(number, len(KINDS))
    order = random.Random(f"{seed} {block // len(MOMENTS)}").sample(range(len(KINDS)), len(KINDS))
    which = order[place]
    rng = random.Random(f"{seed} {number}")
    kind, moment = KINDS[which], MOMENTS[(block + which) % len(MOMENTS)]
    latest_s = {"driver": 12.0, "raylet": 8.0}.get(kind, 2.0)
    return Case(
        number=number,
        kind=kind,
        moment=moment,
        sync="ps" if kind == "ps" else rng.choice(list(LAYOUT)),
        choice=rng.random(),
        iteration=rng.randrange(10, STEPS // 2) if moment != "start" else 0,
        delay_s=rng.uniform(0, {"start": latest_s, "training": 1.0, "checkpoint": 0.02}[moment]),
    )


def draw_cut(seed: int, number: int, seconds: float, between: str | None = None) -> Case:
    """A trial in which two machines do not reach each other for a while."""
    rng = random.Random(f"{seed} cut {number}")
    pair = rng.choice(list(combinations(MACHINES, 2)))
    if between:
        one, other = between.split(",")
        pair = (one, other)
    iteration, delay_s = rng.randrange(10, STEPS // 2), rng.uniform(0, 1)
    sync = rng.choice(list(LAYOUT))
    return Case(number, "network", "training", sync, 0, iteration, delay_s, seconds, pair)


class Trials:
    """Trials on one testbed.

    Args:
        bed: Where runs run.
        scratch: Folder for the graph and for runs.
        say: Told what is done.
        most_silent_s: For how long a run may say nothing; none on a machine that may be busy.
    """

    def __init__(
        self,
        bed: Testbed,
        scratch: Path,
        log: Callable[[str], None],
        most_silent_s: float | None = SILENCE_S,
    ) -> None:
        self._bed, self._scratch, self._log = bed, scratch, log
        self._most_silent_s = most_silent_s
        self._ends: dict[tuple[str, float], tuple[int, dict[str, Any]]] = {}
        self._graph = scratch / "graph"
        if not self._graph.exists():
            partition(GRAPH, self._graph, len(MACHINES))

    def trial(self, case: Case) -> dict[str, Any]:
        """Disturb a run; what it did, and what is wrong with that."""
        expected = self._undisturbed(case.sync, case.dropout)
        began_s = time.monotonic()
        before = left_files(self._bed)
        watch = self._start(case, f"trial-{case.number}-{case.kind}", PAUSE_S)
        found: dict[str, Any] = {**asdict(case), "delay_s": round(case.delay_s, 3)}
        problems: list[str] = []
        try:
            if case.interrupt_at is not None:
                watch, interrupted = self._interrupt(watch, case, case.interrupt_at)
                problems += interrupted
            if not self._is_there(watch, case):
                problems.append("the run was over before anything happened")
            elif case.kind == "network":
                found |= self._cut(watch, case)
            else:
                watch, killed = self._kill(watch, case)
                found |= killed
            if not watch.end(PATIENCE_S + case.seconds):
                problems.append("it does not end")
        finally:
            self._end(watch)
        found |= self._seen(watch, found)
        found["left"] = self._left(before, found.get("machines", MACHINES))
        problems += self._judge(watch, found, expected)
        self._repair()
        found.pop("since_s", None)
        found |= {"problems": problems, "elapsed_s": round(time.monotonic() - began_s, 1)}
        if problems:
            found["said"] = [f"{at - watch.began_s:.1f} {line}" for at, line in watch.lines][-60:]
        elif watch.folder is not None:
            shutil.rmtree(watch.folder.parents[1], ignore_errors=True)
        return found

    def _left(self, before: set[str], alive: Sequence[str]) -> list[str]:
        """What a run leaves; what is on a lost machine is removed by the next run there."""
        left = left_over(self._bed)
        for name in sorted(left_files(self._bed)):
            is_new = name not in before or PREFIX in name
            if is_new and name.partition(":")[0] in alive:
                left.append(name)
        return left

    # --- runs -------------------------------------------------------------------------------------

    def _undisturbed(self, sync: str, dropout: float) -> tuple[int, dict[str, Any]]:
        """How a run ends that nobody disturbs."""
        key = (sync, dropout)
        if key not in self._ends:
            self._log(f"undisturbed: {sync}, dropout {dropout}")
            case = Case(0, "raylet" if not dropout else "store", "", sync, 0, 0, 0)
            watch = self._start(case, f"undisturbed-{sync}-{dropout}", 0.0)
            is_over = watch.end(PATIENCE_S)
            self._end(watch)
            if not is_over or watch.process.returncode or watch.folder is None:
                raise RuntimeError(f"undisturbed, a run fails: {watch.lines[-20:]}")
            self._ends[key] = end_of(watch.folder)
        return self._ends[key]

    def _start(self, case: Case, name: str, pause_s: float) -> Watch:
        folder = self._scratch / name
        shutil.rmtree(folder, ignore_errors=True)
        config = {**CONFIG, "steps": STEPS, "pause_s": pause_s}
        config |= {"dropout": case.dropout, "ballast": BALLAST}
        plan = make_plan(LAYOUT[case.sync], BATCH_SIZE)
        options = ("--checkpoint-every", str(EVERY))
        run = Run(self._bed, plan, self._graph, folder, config, options)
        run.log.close()
        return Watch(run.process, folder / "errors", run.runs)

    def _resume(self, watch: Watch, case: Case) -> Watch:
        """Go on with a run whose driver is gone; from its beginning if it had none yet."""
        folder = watch.folder
        if folder is None or not (folder / "run.json").exists():
            return self._start(case, f"trial-{case.number}-again", 0.0)
        errors = folder.parents[1] / "errors-resumed"
        words = [sys.executable, "-m", "headrace", "run", "--resume", folder.name, "--json"]
        words += ["--runs", str(folder.parent)]
        with errors.open("w") as log:
            process = subprocess.Popen(
                self._bed.command("m0", words),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return Watch(process, errors, folder.parent)

    def _end(self, watch: Watch) -> None:
        """Let nothing of a run live longer than its trial, whatever became of it."""
        if watch.process.poll() is None:
            watch.process.kill()
        watch.process.communicate()
        watch.look()

    def _repair(self) -> None:
        for pid in processes(self._bed):
            os.kill(pid, signal.SIGKILL)
        alive = {victim.machine for victim in victims(self._bed, "raylet")}
        for name in MACHINES:
            if name not in alive:
                start_raylet(self._bed, name)

    # --- faults -----------------------------------------------------------------------------------

    def _is_there(self, watch: Watch, case: Case) -> bool:
        """Wait for the moment."""

        def is_near() -> object:
            if case.moment != "start":
                return watch.iterations >= case.iteration
            if case.kind == "raylet":
                return watch.folder is not None
            return case.kind == "driver" or victims(self._bed, case.kind)

        if not watch.wait(is_near, PATIENCE_S):
            return False
        if case.moment == "checkpoint":
            is_there = self._sees_checkpoint(watch, case.choice < 0.5)
            time.sleep(case.delay_s)
            return is_there
        end_s = time.monotonic() + case.delay_s
        return watch.wait(lambda: time.monotonic() >= end_s, case.delay_s + 1)

    def _partial(self, watch: Watch, is_written: bool) -> Path:
        """A checkpoint that is being written by a trainer, or fetched by the driver."""
        assert watch.folder is not None
        if not is_written:
            return watch.folder / "checkpoints" / ".arriving.partial"
        first = LAYOUT["ring"].trainers[0]
        above = machines.tmp_folder(self._bed.layout.host(first))
        newest = max(above.glob("headrace-run-*-trainer0-*"), key=lambda path: path.stat().st_mtime)
        return newest / "output" / "checkpoints" / ".checkpoint.partial"

    def _sees_checkpoint(self, watch: Watch, is_written: bool) -> bool:
        path, end_s = self._partial(watch, is_written), time.monotonic() + 30
        while time.monotonic() < end_s and watch.process.poll() is None:
            if path.exists():
                return True
            time.sleep(0.0005)
        return False

    def _kill(self, watch: Watch, case: Case) -> tuple[Watch, dict[str, Any]]:
        """Kill somebody; the run that goes on, and what was done."""
        choices = victims(self._bed, case.kind)
        if case.kind == "raylet":
            # The one of the driver's machine has Ray's head beside it: all ends with it.
            choices = [victim for victim in choices if victim.machine != MACHINES[0]]
        victim: Victim = choices[int(case.choice * len(choices))]
        found: dict[str, Any] = {"victim": str(victim), "killed_at": watch.iterations}
        if case.moment == "checkpoint":
            found["in_checkpoint"] = self._partial(watch, case.choice < 0.5).exists()
        os.kill(victim.pid, signal.SIGKILL)
        found["since_s"] = time.monotonic()
        self._log(f"{case.number}: killed {victim} at iteration {watch.iterations}")
        if case.kind == "driver":
            watch.end(PATIENCE_S)
            watch.process.communicate()
            found["left_before_resume"] = left_over(self._bed)
            watch = self._resume(watch, case)
            found["since_s"] = watch.began_s
        return watch, found

    def _interrupt(self, watch: Watch, case: Case, iteration: int) -> tuple[Watch, list[str]]:
        """Press Ctrl-C, and resume; the run that goes on, and what is wrong."""
        watch.wait(lambda: watch.iterations >= iteration, PATIENCE_S)
        (driver,) = victims(self._bed, "driver")
        os.kill(driver.pid, signal.SIGINT)
        self._log(f"{case.number}: interrupted at iteration {watch.iterations}")
        watch.end(PATIENCE_S)
        watch.process.communicate()
        problems = []
        if watch.process.returncode != INTERRUPTED or watch.status()["state"] != "interrupted":
            problems.append(f"interrupted, it ended with {watch.process.returncode}")
        saved = newest_whole(watch.folder / "checkpoints") if watch.folder is not None else None
        if saved is None or saved.sidecar.iteration < iteration:
            problems.append("interrupted, it did not save where it was")
        if not any("headrace run --resume" in line for _, line in watch.lines):
            problems.append("interrupted, it did not say how to go on")
        if left := left_over(self._bed):
            problems.append(f"interrupted, it left {left}")
        return self._resume(watch, case), problems

    def _cut(self, watch: Watch, case: Case) -> dict[str, Any]:
        assert case.between is not None
        one, other = case.between
        found: dict[str, Any] = {"victim": f"{one} - {other}", "killed_at": watch.iterations}
        cut(self._bed, one, other, is_cut=True)
        found["since_s"] = since_s = time.monotonic()
        self._log(f"{case.number}: cut {one} from {other} for {case.seconds:g} s")
        try:
            # A run that ends without the network does not need it any more.
            watch.wait(lambda: time.monotonic() >= since_s + case.seconds, case.seconds + 1)
        finally:
            cut(self._bed, one, other, is_cut=False)
        return found | {"cut_s": round(time.monotonic() - since_s, 1)}

    # --- what is seen -----------------------------------------------------------------------------

    def _seen(self, watch: Watch, done: dict[str, Any]) -> dict[str, Any]:
        since_s, words = done.get("since_s", watch.began_s), tuple[str, ...]()
        if "victim" in done and done["kind"] not in ("driver", "network"):
            words = (done["victim"].removeprefix("raylet on "),)
        found: dict[str, Any] = {
            "code": watch.process.returncode,
            "first_message_s": watch.first_s(since_s, words),
            "silence_s": watch.silence_s(since_s),
        }
        if watch.folder is None:
            return found
        status = watch.status()
        return found | {
            "recovery_s": recovery_s(step_ends(watch.folder), since_s),
            "decisions": [event["line"] for event in events(watch.folder, "decision")],
            "attempts": status["attempt"],
            "restarts": status["restarts"],
            "machines": [machine["name"] for machine in status["machines"]],
        }

    def _judge(
        self, watch: Watch, found: dict[str, Any], expected: tuple[int, dict[str, Any]]
    ) -> list[str]:
        problems = []
        if found["code"] or watch.folder is None:
            return [f"it ended with {found['code']}"]
        iteration, state = end_of(watch.folder)
        same_machines = found["machines"] == list(MACHINES)
        names = ("model", "optimizer")
        found["difference"] = difference(state, expected[1])
        found["is_same"] = all(is_same(state[name], expected[1][name]) for name in names)
        if iteration != expected[0]:
            problems.append(f"it did {iteration} steps and not {expected[0]}")
        if same_machines and not found["is_same"]:
            problems.append(f"parameters differ by {found['difference']:.2g}")
        if found["difference"] > CLOSE:
            problems.append(f"parameters differ by {found['difference']:.2g}, more than {CLOSE:g}")
        if self._most_silent_s is not None and found["silence_s"] > self._most_silent_s:
            problems.append(f"nothing was said for {found['silence_s']:.1f} s")
        if found["left"] or found.get("left_before_resume"):
            problems.append("something is left behind")
        if found["kind"] not in ("driver", "network") and not found["decisions"]:
            problems.append("nothing was decided")
        return problems


def write(path: Path, document: dict[str, Any]) -> None:
    """Replace a file at one stroke."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_text(json.dumps(document, indent=1) + "\n")
    hidden.replace(path)
