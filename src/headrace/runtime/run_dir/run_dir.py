"""Run folders on the driver's machine: one per run, named by its id, the newest also `latest`.

The driver holds a lock on a file of the folder for as long as it lives. The kernel lets go of it
whatever way the driver ends, and the lock is seen from every pid namespace.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from headrace.core.errors import SpecError
from headrace.runtime.run_dir.status import Status

RUNS_VARIABLE = "HEADRACE_RUNS"
"""Environment variable that names the folder of all runs."""

LATEST = "latest"
"""Symbolic link to the newest run."""

SILENCE_S = 15.0
"""After how long without a word a living driver counts as silent; it writes about every second."""

_LOCK = "driver.lock"


class Driver(StrEnum):
    """What is known of the process that drives a run."""

    ALIVE = "alive"
    SILENT = "silent"
    ENDED = "ended"
    DIED = "died"


def runs_folder(given: Path | None = None) -> Path:
    """Where runs lie: as given, else as the environment says, else below the home."""
    return given or Path(os.environ.get(RUNS_VARIABLE) or Path.home() / ".headrace" / "runs")


class RunDirectory:
    """The files of one run.

    Whoever drives a run makes its folder with `create` and closes it at the end; others find it
    with `find_run` and only read.

    Args:
        path: The folder.

    Attributes:
        path: The folder.
        plan: File of the plan.
        events: File with a line per event and decision of the controller.
        reports: File with a line per report of the script.
        logs: Folder with a file per task.
        best: File with the best model.
        checkpoints: Folder with the newest ones that are whole.
        summary: File with the run's figures, written at its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan = path / "plan.json"
        self.events = path / "events.jsonl"
        self.reports = path / "reports.jsonl"
        self.logs = path / "logs"
        self.best = path / "best.pt"
        self.checkpoints = path / "checkpoints"
        self.summary = path / "figures.json"
        self._status = path / "status.json"
        self._lock: int | None = None

    @classmethod
    def create(cls, runs: Path, job_name: str, now_s: float | None = None) -> Self:
        """Make the folder of a new run, locked by this process.

        Args:
            runs: Where runs lie; made if it does not exist.
            job_name: What the job is called.
            now_s: The time, in seconds since 1970; now if not given.

        Raises:
            SpecError: The folder cannot be made.
        """
        now_s = time.time() if now_s is None else now_s
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", job_name).strip("-")[:40] or "run"
        base = f"{time.strftime('%Y%m%d-%H%M', time.localtime(now_s))}-{name}"
        try:
            runs.mkdir(parents=True, exist_ok=True)
            # Nobody sees the folder before it has its lock and its first status.
            hidden = Path(tempfile.mkdtemp(prefix=".new-", dir=runs))
            try:
                (hidden / "logs").mkdir()
                lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.write(lock, _own_name())
                run = cls(_claim(runs, hidden, base, job_name, now_s))
            except BaseException:
                shutil.rmtree(hidden, ignore_errors=True)
                raise
            run._lock = lock
            _point(runs / LATEST, run.run_id)
        except OSError as error:
            raise SpecError(
                f"no run folder can be made in {runs}: {error.strerror or error}",
                f"name another folder with --runs or {RUNS_VARIABLE}",
            ) from None
        return run

    def reopen(self) -> Self:
        """Drive this run again, with its files as they are.

        Raises:
            SpecError: It is being driven by a process that lives, or cannot be written to, or
                others can: its files say what is executed.
        """
        try:
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                self._check_is_own()
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.truncate(lock, 0)
                os.write(lock, _own_name())
            except BaseException:
                os.close(lock)
                raise
        except BlockingIOError:
            raise SpecError(
                f"{self.run_id} still runs, driven by {self.driver_name()}",
                "wait for its end, or interrupt it",
            ) from None
        except OSError as error:
            raise SpecError(
                f"{self.path} cannot be gone on with: {error.strerror or error}",
                "name the folder of a run that you may write to",
            ) from None
        self._lock = lock
        return self

    @property
    def run_id(self) -> str:
        """Name of the run."""
        return self.path.name

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """This process drives the run no longer."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def set_aside(self, attempt: int, plan: str) -> None:
        """Keep what tasks of a plan recorded apart: those of another have the same names.

        Args:
            attempt: In which they did.
            plan: The plan, as it is written.
        """
        aside = self.path / f"attempt-{attempt}"
        aside.mkdir(exist_ok=True)
        for path in [*self.path.glob("trace-*.jsonl"), self.path / "clocks.json"]:
            with suppress(FileNotFoundError):
                path.replace(aside / path.name)
        (aside / self.plan.name).write_text(plan, encoding="utf-8")

    def log(self, task: str) -> Path:
        """File for what a task prints."""
        return self.logs / f"{task}.log"

    def write_status(self, status: Status) -> None:
        """Replace the status at one stroke."""
        _replace(self._status, status.model_dump_json(indent=1) + "\n")

    def read_status(self) -> Status:
        """The status that was written last.

        Raises:
            SpecError: There is none, or it is of another version.
        """
        try:
            return Status.model_validate_json(self._status.read_bytes())
        except OSError as error:
            raise SpecError(
                f"{self._status} cannot be read: {error.strerror}", "name the folder of a run"
            ) from None
        except ValidationError:
            raise SpecError(
                f"{self._status} is no status that this headrace reads",
                "use the headrace that wrote it",
            ) from None

    def append_event(self, kind: str, now_s: float | None = None, **fields: Any) -> None:
        """Note something that happened."""
        at_s = time.time() if now_s is None else now_s
        _append(self.events, {"at_s": round(at_s, 3), "kind": kind, **fields})

    def append_report(self, figures: dict[str, Any], now_s: float | None = None) -> None:
        """Note what the script reported."""
        at_s = time.time() if now_s is None else now_s
        _append(self.reports, {"at_s": round(at_s, 3), "figures": figures})

    def driver(self, status: Status, now_s: float | None = None) -> Driver:
        """What is known of the process that drives this run."""
        if status.state.is_over:
            return Driver.ENDED
        if not self._is_locked():
            return Driver.DIED
        now_s = time.time() if now_s is None else now_s
        return Driver.SILENT if now_s - status.updated_s > SILENCE_S else Driver.ALIVE

    def driver_name(self) -> str:
        """Who drives or drove this run, for messages: `pid 4711 on m1`."""
        with suppress(OSError):
            return (self.path / _LOCK).read_text().strip() or "its driver"
        return "its driver"

    def _check_is_own(self) -> None:
        status = self.path.stat()
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise SpecError(
                f"{self.path} is not yours alone: others could have changed what it runs",
                "resume your own runs, in folders that only you can write to (chmod go-w)",
            )

    def _is_locked(self) -> bool:
        try:
            lock = os.open(self.path / _LOCK, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def _own_name() -> bytes:
    return f"pid {os.getpid()} on {socket.gethostname()}\n".encode()


def list_runs(runs: Path) -> list[str]:
    """Ids of all runs, the newest last."""
    found: list[tuple[float, str]] = []
    for lock in runs.glob(f"*/{_LOCK}"):
        folder = lock.parent
        # The lock is written once, when the run begins; a run may be removed meanwhile.
        with suppress(OSError):
            if not folder.is_symlink() and not folder.name.startswith("."):
                found.append((lock.stat().st_mtime, folder.name))
    return [name for _, name in sorted(found)]


def find_run(runs: Path, wanted: str | None = None) -> RunDirectory:
    """Find a run.

    Args:
        runs: Where runs lie.
        wanted: Its id, or the beginning of one that no other has; the newest if not given. The path
            of a run's folder will do too.

    Raises:
        SpecError: There is no such run, or more than one.
    """
    known = list_runs(runs)
    if wanted and (Path(wanted) / _LOCK).is_file():
        return RunDirectory(Path(wanted).resolve())
    if not known:
        raise SpecError(
            f"there is no run in {runs}",
            "start one with `headrace run` (with --local it keeps no folder), or name the folder "
            f"with --runs or {RUNS_VARIABLE}",
        )
    if wanted is None or wanted == LATEST:
        return RunDirectory(runs / known[-1])
    if wanted in known:
        return RunDirectory(runs / wanted)
    likely = [name for name in known if name.startswith(wanted)]
    if len(likely) == 1:
        return RunDirectory(runs / likely[0])
    if likely:
        raise SpecError(
            f"{len(likely)} runs begin with {wanted!r}", f"choose one of {_some(likely)}"
        )
    raise SpecError(f"there is no run {wanted!r} in {runs}", f"choose one of {_some(known)}")


def _claim(runs: Path, hidden: Path, base: str, job_name: str, now_s: float) -> Path:
    """Give a new folder the first name that is free."""
    number = 1
    while True:
        path = runs / (base if number == 1 else f"{base}-{number}")
        first = Status(run_id=path.name, since_s=now_s, updated_s=now_s, job=job_name)
        RunDirectory(hidden).write_status(first)
        try:
            hidden.rename(path)
        except OSError:
            # Renaming onto a folder with files fails: somebody has that name already.
            if not path.exists():
                raise
            number += 1
        else:
            return path


def _point(link: Path, target: str) -> None:
    hidden = link.with_name(f".{link.name}-{os.getpid()}")
    with suppress(FileNotFoundError):
        hidden.unlink()
    hidden.symlink_to(target)
    hidden.replace(link)


def _replace(path: Path, text: str) -> None:
    hidden = path.with_name(f".{path.name}-{os.getpid()}")
    hidden.write_text(text, encoding="utf-8")
    hidden.replace(path)


def _append(path: Path, line: dict[str, Any]) -> None:
    # One write of a whole line: a reader sees all of it or nothing.
    with path.open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def _some(names: list[str]) -> str:
    shown = ", ".join(reversed(names[-5:]))
    return f"{shown}, ..." if len(names) > 5 else shown


# What the run itself keeps there; a script that calls a file like that must not replace it.
_OWN = re.compile(
    r"(plan|run|status|figures|clocks)\.json|(events|reports|log|trace-.*)\.jsonl|trace\.npz"
    r"|driver\.lock|logs|checkpoints|\..*|"
)


def push(folder: Path, name: str, pieces: Iterable[bytes]) -> None:
    """Write a file, whole or not at all.

    Args:
        folder: Of the run.
        name: What the script calls it.
        pieces: What is in it.

    Raises:
        SpecError: The name is one of the run's own, or names another folder.
    """
    if _OWN.fullmatch(name) or Path(name).name != name:
        raise SpecError(f"a run keeps no file {name!r} of its script", "give it another name")
    partial = folder / f".{name}.partial"
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(folder / name)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
