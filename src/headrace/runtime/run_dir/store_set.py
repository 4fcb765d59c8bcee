"""Store sets: the stores of a graph that outlive runs; a folder for each, beside the run folders.

The supervisor of a set holds a file lock in the folder, writes its state there, and ends when the
folder has a file `stop`. A run that uses the set holds the lock of its own file in `users`.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.units import Count, Number
from headrace.core.values import Value
from headrace.linux.atomic_write import atomic_write
from headrace.runtime.run_dir.file_lock import is_locked
from headrace.runtime.run_dir.run_dir import runs_folder
from headrace.runtime.run_dir.status import Failure, TaskState

STATE_FILE = "stores.json"
_CONFIG, _LOCK, _STOP, _USERS, _LOG = (
    "config.json",
    "supervisor.lock",
    "stop",
    "users",
    "supervisor.log",
)
# `--stores 2` is a number of partitions.
_NAME = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_Port = Annotated[Count, Field(ge=1, le=65535)]
_Num = Annotated[Count, Field(ge=0)]


class StoreSetPhase(StrEnum):
    """Phase of a store set."""

    STARTING = "starting"
    SERVING = "serving"
    ENDED = "ended"
    FAILED = "failed"


class StoreSetConfig(Value):
    """What the supervisor of a store set starts.

    Attributes:
        graph: Directory of the partitioned graph on the supervisor's machine.
        cluster: The machines, with a store each.
        parts: Machine index of every graph partition.
        demand: Resources of a store.
        address: Ray address; None for `RAY_ADDRESS`, else the local cluster.
        tls: Whether connections are encrypted.
        cache: Folder for shipped graphs; see `RunSettings`.
        is_local: Whether all stores are on this machine, without Ray.
    """

    graph: Path
    cluster: Cluster
    parts: tuple[_Num, ...]
    demand: Mapping[str, Number] = Field(default_factory=dict)
    address: str | None = None
    tls: bool = True
    cache: str | None = None
    is_local: bool = False


class ServedStore(Value):
    """A store of a store set.

    Attributes:
        task: Name of the store: `store0`.
        machine: Name of its machine in the cluster file.
        host: Address at which it serves.
        graph: Folder of the graph on its machine; empty before it is known.
        ports: Port of each of its graph partitions; empty before it serves for the first time.
        state: `running` if it serves, `starting` before that and during a restart.
        pid: Process id on its machine.
        actor_pid: Process id of its task actor, which restarts it.
        restarts: Number of restarts.
        is_verified: Whether it has verified the checksums of all files of its machine.
    """

    task: str
    machine: str
    host: str
    graph: str = ""
    ports: Mapping[_Num, _Port] = Field(default_factory=dict)
    state: TaskState = TaskState.STARTING
    pid: int | None = None
    actor_pid: int | None = None
    restarts: _Num = 0
    is_verified: bool = False


class StoreSetState(Value):
    """State of a store set.

    Attributes:
        version: Version of the file format.
        name: Name of the store set.
        graph: Directory of the graph on the machine of the supervisor.
        graph_fingerprint: Fingerprint of the graph's manifest.
        tls: Whether connections are encrypted.
        is_local: Whether all stores are on one machine, without Ray.
        since_s: Start time, in seconds since 1970.
        supervisor: The process that restarts stores: `pid 4711 on m1`.
        phase: Phase of the store set.
        stores: One store per machine.
        error: Why the stores ended, if they failed.
    """

    version: Literal[1] = 1
    name: str
    graph: Path
    graph_fingerprint: str
    tls: bool
    is_local: bool
    since_s: float
    supervisor: str = ""
    phase: StoreSetPhase = StoreSetPhase.STARTING
    stores: tuple[ServedStore, ...] = ()
    error: Failure | None = None


class StoreSet:
    """The folder of a store set.

    Attributes:
        path: The folder; only its user can read it.
        log: Log of the supervisor and its stores.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.log = path, path / _LOG

    @property
    def name(self) -> str:
        """Name of the store set."""
        return self.path.name

    def claim(self, config: StoreSetConfig) -> int:
        """Create the folder, and return the descriptor that holds its lock.

        Raises:
            SpecError: The stores are up already, or the folder cannot be created.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)
            self._check_is_own()
            lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._clear()
                (self.path / _USERS).mkdir(mode=0o700)
                atomic_write(self.path / _CONFIG, config.model_dump_json(indent=1) + "\n")
            except BaseException:
                os.close(lock)
                raise
        except BlockingIOError:
            raise SpecError(
                f"the stores {self.name} are up already",
                f"use them with `headrace run --stores {self.name}`, or choose another --name",
            ) from None
        except OSError as error:
            raise SpecError(
                f"{self.path} cannot be created: {error.strerror or error}",
                "give another folder with --runs",
            ) from None
        return lock

    @property
    def config(self) -> StoreSetConfig:
        """What the supervisor starts."""
        return StoreSetConfig.model_validate_json((self.path / _CONFIG).read_bytes())

    def write(self, state: StoreSetState) -> None:
        """Replace the state file atomically."""
        atomic_write(self.path / STATE_FILE, state.model_dump_json(indent=1) + "\n")

    def read(self) -> StoreSetState:
        """The current state; raises SpecError if it is missing or has another version."""
        try:
            return StoreSetState.model_validate_json((self.path / STATE_FILE).read_bytes())
        except OSError:
            raise SpecError(
                f"there are no stores named {self.name}",
                f"start them with `headrace stores up --graph DIR --name {self.name}`",
            ) from None
        except ValidationError:
            raise SpecError(
                f"{self.path / STATE_FILE} is not a state file of this headrace version",
                "use the headrace version that wrote it",
            ) from None

    @property
    def is_up(self) -> bool:
        """Whether the supervisor is alive."""
        return is_locked(self.path / _LOCK)

    def keys(self, task: str) -> Path:
        """File with the credentials of the machine of a store."""
        return self.path / f"keys-{task}"

    def request_stop(self) -> None:
        """Ask the supervisor to end all stores; it works from every machine with the folder."""
        (self.path / _STOP).touch()

    @property
    def is_stop_requested(self) -> bool:
        """Whether the supervisor was asked to end."""
        return (self.path / _STOP).exists()

    @contextmanager
    def used_by(self, run_id: str) -> Iterator[None]:
        """Record a run as a user of the stores; its lock ends with this process at the latest."""
        path = self.path / _USERS / run_id
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    @property
    def users(self) -> list[str]:
        """Runs that use the stores now."""
        with suppress(OSError):
            paths = sorted((self.path / _USERS).iterdir())
            return [path.name for path in paths if is_locked(path)]
        return []

    def remove(self) -> None:
        """Remove the folder, and that of all store sets if it was the last."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()

    def _clear(self) -> None:
        """Remove the files of a supervisor that has died."""
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()

    def _check_is_own(self) -> None:
        status = self.path.lstat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise SpecError(
                f"{self.path} is not private to you, and it would have your credentials",
                "remove it, or give another folder with --runs",
            )

    @classmethod
    def named(cls, name: str, runs: Path | None = None) -> Self:
        """The folder of a store set, by its name or path; raises SpecError for other names."""
        if "/" in name and (Path(name) / STATE_FILE).is_file():
            return cls(Path(name).absolute())
        if not _NAME.fullmatch(name):
            raise SpecError(
                f"{name!r} is not a name of stores",
                "use letters, digits, dots, dashes and underscores, and not digits alone",
            )
        return cls(_above(runs) / name)

    @classmethod
    def all(cls, runs: Path | None = None) -> list[Self]:
        """All store sets that have a state."""
        return [cls(path.parent) for path in sorted(_above(runs).glob(f"*/{STATE_FILE}"))]


def _above(runs: Path | None) -> Path:
    return runs_folder(runs).absolute() / "stores"
