"""Faults other than a kill: frozen processes, full disks, a lost head, two faults at once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from headrace.core.errors import RunError
from headrace.testbed import Testbed, machines
from headrace.testbed.layout import FOLDER
from tests.support.cluster_bed import MACHINES
from tests.support.cluster_checks import left_over
from tests.support.disks import fill
from tests.support.fault_trials import LAYOUT, SILENCE_S, STEPS, Case, Trials
from tests.support.fault_victims import Victim, start_head, victims
from tests.support.fault_watch import Watch, events

MORE_KINDS = (
    *("frozen trainer", "frozen store", "frozen sampler", "frozen ps", "frozen actor"),
    *("frozen driver", "full trainer", "full store", "full sampler", "full ps", "full driver"),
    *("head", "two"),
)
END_S = 60.0
"""A run that cannot go on ends this soon."""

FROZEN_S = 40.0
"""How long a driver is frozen."""

DISK_BYTES = 192 << 20
_KILLED = ("store", "sampler", "trainer")


def draw_more(seed: int, number: int, kind: str | None = None) -> Case:
    """A trial: thirteen in a row have all kinds."""
    block, place = divmod(number, len(MORE_KINDS))
    order = random.Random(f"{seed} more {block}").sample(MORE_KINDS, len(MORE_KINDS))
    rng = random.Random(f"{seed} more {number}")
    kind = kind or order[place]
    return Case(
        number=number,
        kind=kind,
        moment="training",
        sync="ps" if kind.endswith(" ps") else rng.choice(list(LAYOUT)),
        choice=rng.random(),
        iteration=rng.randrange(20, STEPS // 2),
        delay_s=rng.uniform(0, 1),
    )


@contextmanager
def small_disks(name: str, scratch: Path) -> Iterator[None]:
    """Let machines of a testbed that is not up yet see mounts that are made later."""
    folders = [FOLDER / name, scratch]
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _run("mount", "--bind", folder, folder)
        _run("mount", "--make-shared", folder)
    try:
        yield
    finally:
        for folder in folders:
            subprocess.run(["umount", "--lazy", "--recursive", str(folder)], check=False)
        with suppress(OSError):
            (FOLDER / name).rmdir()


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True)


class MoreTrials(Trials):
    """Trials on one testbed, whose machines have small disks of their own."""

    def __init__(
        self,
        bed: Testbed,
        scratch: Path,
        log: Callable[[str], None],
        most_silent_s: float | None = SILENCE_S,
    ) -> None:
        super().__init__(bed, scratch, log, most_silent_s)
        self._disks: list[Path] = []
        for name in MACHINES:
            self._mount(machines.tmp_folder(bed.layout.host(name)))

    def close(self) -> None:
        """Remove the disks."""
        while self._disks:
            subprocess.run(["umount", "--lazy", str(self._disks.pop())], check=False)

    def trial(self, case: Case) -> dict[str, Any]:
        """Disturb a run; what it did, and what is wrong with that."""
        num_disks = len(self._disks)
        try:
            return super().trial(case)
        finally:
            for disk in self._disks:
                (disk / "filler").unlink(missing_ok=True)
            for disk in self._disks[num_disks:]:
                subprocess.run(["umount", "--lazy", str(disk)], check=False)
            del self._disks[num_disks:]

    def _start(self, case: Case, name: str, pause_s: float) -> Watch:
        if case.kind == "full driver" and name.startswith("trial"):
            folder = self._scratch / name
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "runs").mkdir(parents=True)
            self._mount(folder / "runs")
        return super()._start(case, name, pause_s)

    def _mount(self, folder: Path) -> None:
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", folder)
        self._disks.append(folder)

    def _is_there(self, watch: Watch, case: Case) -> bool:
        end_s = time.monotonic() + 240
        while time.monotonic() < end_s and watch.look():
            if watch.iterations >= case.iteration:
                time.sleep(case.delay_s)
                return True
            time.sleep(0.05)
        return False

    def _kill(self, watch: Watch, case: Case) -> tuple[Watch, dict[str, Any]]:
        how, _, role = case.kind.partition(" ")
        found: dict[str, Any] = {"killed_at": watch.iterations}
        if how == "two":
            rng = random.Random(case.choice)
            hit = [rng.choice(victims(self._bed, kind)) for kind in rng.sample(_KILLED, 2)]
            found["victim"] = str(hit[0])
            for each in hit:
                os.kill(each.pid, signal.SIGKILL)
                time.sleep(rng.choice((0.0, 0.5, 3.0)))
        elif how == "head":
            found["victim"] = "Ray's head"
            os.kill(victims(self._bed, "head")[0].pid, signal.SIGKILL)
        elif how == "full":
            found["victim"] = str(self._fill(watch, case, role))
        else:
            found["victim"] = str(self._freeze(watch, self._one_of(role, case)))
        found["since_s"] = time.monotonic()
        self._log(f"{case.number}: {case.kind}: {found['victim']} at {watch.iterations}")
        if case.kind == "frozen driver":
            time.sleep(FROZEN_S)
            os.kill(self._one_of(role, case).pid, signal.SIGCONT)
            found["since_s"] = time.monotonic()
        return watch, found

    def _one_of(self, role: str, case: Case) -> Victim:
        choices = victims(self._bed, role)
        return choices[int(case.choice * len(choices))]

    def _freeze(self, watch: Watch, victim: Victim) -> Victim:
        os.kill(victim.pid, signal.SIGSTOP)
        return victim

    def _fill(self, watch: Watch, case: Case, role: str) -> Victim:
        victim = self._one_of(role, case)
        assert watch.folder is not None
        disk = watch.folder.parent
        if role != "driver":
            disk = machines.tmp_folder(self._bed.layout.host(victim.machine))
        fill(disk)
        return victim

    def _repair(self) -> None:
        super()._repair()
        if not victims(self._bed, "head"):
            start_head(self._bed)

    def _seen(self, watch: Watch, done: dict[str, Any]) -> dict[str, Any]:
        found = super()._seen(watch, {**done, "victim": ""} if "victim" in done else done)
        if "since_s" in done:
            found["ended_s"] = round(time.monotonic() - done["since_s"], 1)
        if watch.folder is not None:
            status = watch.status()
            found |= {"state": status["state"], "error": status["error"]}
            found["outcomes"] = events(watch.folder, "outcome")
        found["last_lines"] = [line for _, line in watch.lines[-8:]]
        return found

    def _judge(
        self, watch: Watch, found: dict[str, Any], expected: tuple[int, dict[str, Any]]
    ) -> list[str]:
        if not found["code"]:
            problems = [
                each
                for each in super()._judge(watch, found, expected)
                if each != "nothing was decided"
            ]
            if found.get("state") != "done":
                problems.append(f"it ended well, and its state is {found.get('state')}")
            return problems
        problems = []
        if found.get("state") != "failed" or not found.get("error"):
            problems.append(f"it failed, and its state is {found.get('state')}")
        if found["code"] != RunError.exit_code:
            problems.append(f"it ended with {found['code']}")
        if found["ended_s"] > END_S:
            problems.append(f"it took {found['ended_s']} s to end")
        if self._most_silent_s is not None and found["silence_s"] > self._most_silent_s:
            problems.append(f"nothing was said for {found['silence_s']:.1f} s")
        if found["left"] or left_over(self._bed):
            problems.append("something is left behind")
        if any("Traceback" in line for _, line in watch.lines):
            problems.append("it printed a traceback")
        return problems
