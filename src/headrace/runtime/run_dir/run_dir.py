"""Run folders on the driver's machine: one per run, named by its id, the newest also `latest`.

The driver holds a file lock in the folder. The kernel releases it however the driver ends, and it
is visible from every pid namespace.
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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from headrace.core.errors import SpecError
from headrace.linux.atomic_write import atomic_path, atomic_write
from headrace.linux.disk import append_whole, reserve
from headrace.runtime.run_dir.file_lock import is_locked
from headrace.runtime.run_dir.status import Status

RUNS_VARIABLE = "HEADRACE_RUNS"
"""Environment variable with the folder of all runs."""

LATEST = "latest"
"""Symbolic link to the newest run."""

SILENCE_S = 15.0
"""Age of the status after which a live driver counts as silent; it writes about every second."""

_LOCK = "driver.lock"

# For the last status, events and lines of a run whose disk is full.
_RESERVE, _RESERVE_BYTES = ".reserve", 1 << 18


class Driver(StrEnum):
    """State of the process that drives a run."""

    ALIVE = "alive"
    SILENT = "silent"
    ENDED = "ended"
    DIED = "died"


def runs_folder(given: Path | None = None) -> Path:
    """Folder of all runs: as given, from the environment, or `~/.headrace/runs`."""
    return given or Path(os.environ.get(RUNS_VARIABLE) or Path.home() / ".headrace" / "runs")


class RunDirectory:
    """The folder of one run.

    The driver creates it with `create` and closes it at the end; readers open it with `find_run`.

    Attributes:
        path: The folder.
        plan: The current plan.
        events: Events and decisions of the controller, as JSON lines.
        reports: Reports of the script, as JSON lines.
        logs: Folder with a log per task.
        best: The best model.
        checkpoints: Folder with the newest complete checkpoints.
        summary: Figures of the run, written at its end.
        problem: Why the last write failed; empty if it succeeded.
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
        self.problem = ""

    @classmethod
    def create(cls, runs: Path, job_name: str, now_s: float | None = None) -> Self:
        """Create the folder of a new run, locked by this process; raises SpecError on failure."""
        now_s = time.time() if now_s is None else now_s
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", job_name).strip("-")[:40] or "run"
        base = f"{time.strftime('%Y%m%d-%H%M', time.localtime(now_s))}-{name}"
        try:
            runs.mkdir(parents=True, exist_ok=True)
            # The folder becomes visible with its lock and its first status.
            hidden = Path(tempfile.mkdtemp(prefix=".new-", dir=runs))
            try:
                (hidden / "logs").mkdir()
                lock = os.open(hidden / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
                fcntl.flock(lock, fcntl.LOCK_EX)
                os.write(lock, own_name())
                run = cls(_claim(runs, hidden, base, job_name, now_s))
            except BaseException:
                shutil.rmtree(hidden, ignore_errors=True)
                raise
            run._lock = lock
            _point(runs / LATEST, run.run_id)
        except OSError as error:
            raise SpecError(
                f"no run folder can be created in {runs}: {error.strerror or error}",
                f"give another folder with --runs or {RUNS_VARIABLE}",
            ) from None
        return run

    def reopen(self) -> Self:
        """Lock the folder of an existing run, to resume it.

        Raises:
            SpecError: Its driver is alive, or the folder is not writable, or other users can write
                to it: its files define what is executed.
        """
        try:
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            try:
                self._check_is_own()
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.truncate(lock, 0)
                os.write(lock, own_name())
            except BaseException:
                os.close(lock)
                raise
        except BlockingIOError:
            raise SpecError(
                f"{self.run_id} is still running, driven by {self.driver_name()}",
                "wait until it ends, or interrupt it",
            ) from None
        except OSError as error:
            raise SpecError(
                f"{self.path} cannot be resumed: {error.strerror or error}",
                "name the folder of a run that you can write to",
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
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def set_aside(self, attempt: int, plan: str) -> None:
        """Move the traces of an attempt to a subfolder: the next plan reuses task names."""
        aside = self.path / f"attempt-{attempt}"
        aside.mkdir(exist_ok=True)
        for path in [*self.path.glob("trace-*.jsonl"), self.path / "clocks.json"]:
            with suppress(FileNotFoundError):
                path.replace(aside / path.name)
        (aside / self.plan.name).write_text(plan, encoding="utf-8")

    def log(self, task: str) -> Path:
        """Log file of a task."""
        return self.logs / f"{task}.log"

    def write_status(self, status: Status) -> None:
        """Replace the status file atomically."""
        atomic_write(self._status, status.model_dump_json(indent=1) + "\n")

    def read_status(self) -> Status:
        """The latest status; raises SpecError if it is missing or has another version."""
        try:
            return Status.model_validate_json(self._status.read_bytes())
        except OSError as error:
            raise SpecError(
                f"{self._status} cannot be read: {error.strerror}", "name the folder of a run"
            ) from None
        except ValidationError:
            raise SpecError(
                f"{self._status} is not a status file of this headrace version",
                "use the headrace version that wrote it",
            ) from None

    def append_event(self, kind: str, now_s: float | None = None, **fields: Any) -> None:
        """Append an event."""
        at_s = time.time() if now_s is None else now_s
        self._append_line(self.events, {"at_s": round(at_s, 3), "kind": kind, **fields})

    def append_report(
        self, figures: Mapping[str, Any], now_s: float | None = None, iterations: int = 0
    ) -> None:
        """Append a report that the script made after so many iterations."""
        at_s = time.time() if now_s is None else now_s
        line = {"at_s": round(at_s, 3), "figures": figures, "iterations": iterations}
        self._append_line(self.reports, line)

    def append(self, path: Path, data: bytes) -> None:
        """Append to a file of the folder; without space the data is dropped."""
        with self.tolerated():
            append_whole(path, data)

    def _append_line(self, path: Path, line: dict[str, Any]) -> None:
        self.append(path, json.dumps(line).encode() + b"\n")

    @contextmanager
    def tolerated(self) -> Iterator[None]:
        """Record an error of a write in `problem`: a full disk must not end a healthy run."""
        try:
            yield
        except OSError as error:
            self.problem = error.strerror or type(error).__name__
        else:
            self.problem = ""

    def reserve(self) -> None:
        """Take space for the end of the run, until `release`."""
        with self.tolerated():
            reserve(self.path / _RESERVE, _RESERVE_BYTES)

    def release(self) -> None:
        """Give the reserved space to what is written next."""
        (self.path / _RESERVE).unlink(missing_ok=True)

    def driver(self, status: Status) -> Driver:
        """State of the process that drives this run."""
        if status.state.is_over:
            return Driver.ENDED
        if not is_locked(self.path / _LOCK):
            return Driver.DIED
        return Driver.SILENT if self.status_age_s > SILENCE_S else Driver.ALIVE

    @property
    def status_age_s(self) -> float:
        """Age of the status; 0 if it is unknown, because the folder cannot be written.

        By the clock of the file system: those of driver and reader may differ.
        """
        with suppress(OSError), tempfile.TemporaryFile(dir=self.path) as file:
            return os.fstat(file.fileno()).st_mtime - self._status.stat().st_mtime
        return 0.0

    def driver_name(self) -> str:
        """The process that drives or drove this run, for messages: `pid 4711 on m1`."""
        with suppress(OSError):
            return (self.path / _LOCK).read_text().strip() or "its driver"
        return "its driver"

    def _check_is_own(self) -> None:
        status = self.path.stat()
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise SpecError(
                f"{self.path} can be changed by other users, who could change what is executed",
                "resume only your own runs, in folders that only you can write to (chmod go-w)",
            )


def own_name() -> bytes:
    """Name of this process for lock files and messages."""
    return f"pid {os.getpid()} on {socket.gethostname()}\n".encode()


def list_runs(runs: Path) -> list[str]:
    """Ids of all runs, newest last."""
    found: list[tuple[float, str]] = []
    for lock in runs.glob(f"*/{_LOCK}"):
        folder = lock.parent
        # The lock file is written when the run starts; a run may be removed concurrently.
        with suppress(OSError):
            if not folder.is_symlink() and not folder.name.startswith("."):
                found.append((lock.stat().st_mtime, folder.name))
    return [name for _, name in sorted(found)]


def find_run(runs: Path, wanted: str | None = None) -> RunDirectory:
    """Find a run.

    Args:
        runs: Folder of all runs.
        wanted: Id of the run, a unique prefix of it, or the path of its folder; the newest if None.

    Raises:
        SpecError: No run or several runs match.
    """
    known = list_runs(runs)
    if wanted and (Path(wanted) / _LOCK).is_file():
        return RunDirectory(Path(wanted).resolve())
    if not known:
        raise SpecError(
            f"there is no run in {runs}",
            f"start one with `headrace run`, or give the folder with --runs or {RUNS_VARIABLE}",
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
    """Rename a new folder to the first free name."""
    number = 1
    while True:
        path = runs / (base if number == 1 else f"{base}-{number}")
        first = Status(run_id=path.name, since_s=now_s, updated_s=now_s, job=job_name)
        RunDirectory(hidden).write_status(first)
        try:
            hidden.rename(path)
        except OSError:
            # The target exists and is not empty: the name is taken.
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


def _some(names: list[str]) -> str:
    shown = ", ".join(reversed(names[-5:]))
    return f"{shown}, ..." if len(names) > 5 else shown


# Files of the run itself, which output files of the script must not replace.
_OWN = re.compile(
    r"(plan|run|status|figures|clocks)\.json|(events|reports|log|trace-.*)\.jsonl|trace\.npz"
    r"|driver\.lock|logs|checkpoints|\..*|"
)


def push(folder: Path, name: str, pieces: Iterable[bytes]) -> None:
    """Write an output file of the script atomically; raises SpecError for a reserved name."""
    if _OWN.fullmatch(name) or Path(name).name != name:
        raise SpecError(f"{name!r} is not allowed as an output file name", "give it another name")
    with atomic_path(folder / name) as partial, partial.open("wb") as file:
        for piece in pieces:
            file.write(piece)
