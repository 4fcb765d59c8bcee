"""The state file of a testbed and the lock that serializes changes."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from headrace.core.errors import RunError, SpecError
from headrace.linux.atomic_write import atomic_write
from headrace.testbed.layout import FOLDER, HostLayout

_LOCK_TIMEOUT_S = 180.0
_FILE = "testbed.json"


def read(name: str) -> HostLayout | None:
    """Read the state of a testbed; None if there is none."""
    path = FOLDER / name / _FILE
    try:
        _check_is_own(path.parent)
        return HostLayout.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except PermissionError:
        raise SpecError(f"only root can read {path}", "use sudo") from None
    except ValidationError:
        raise SpecError(
            f"{path} is not a testbed of this version of headrace",
            "take it down with the version that created it",
        ) from None


def write(layout: HostLayout) -> None:
    """Write the state atomically."""
    atomic_write(layout.folder / _FILE, layout.model_dump_json(indent=2), sync=True)


def forget(layout: HostLayout) -> None:
    """Remove all files; the state file last, so that `down` works after a crash."""
    for path in layout.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _FILE:
            path.unlink()
    (layout.folder / _FILE).unlink()


def names() -> list[str]:
    """Names of all testbeds."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{_FILE}"))


@contextmanager
def locked(name: str) -> Iterator[Path]:
    """Lock a testbed's directory; it is removed afterwards if empty."""
    folder = FOLDER / name
    end_s = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        handle = _open(folder)
        try:
            if handle is not None and _lock(handle) and _is_same(handle, folder):
                try:
                    yield folder
                finally:
                    for empty in (folder, FOLDER):
                        with suppress(OSError):
                            empty.rmdir()
                return
        finally:
            if handle is not None:
                os.close(handle)
        if time.monotonic() > end_s:
            raise RunError(
                f"another command has been changing testbed {name!r} for {_LOCK_TIMEOUT_S:g} s",
                "stop that command, or choose another --name",
            )
        time.sleep(0.05)


def _open(folder: Path) -> int | None:
    """Create and open the directory; None if another process removes it meanwhile."""
    try:
        FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_is_own(folder)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def _check_is_own(folder: Path) -> None:
    """Check who can write a testbed's state file, since it names processes to kill."""
    for each in (FOLDER, folder):
        status = each.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid())
        if not is_own or status.st_mode & 0o022:
            raise SpecError(f"other users can write to {each}", f"check and remove it: {each}")


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(handle: int, folder: Path) -> bool:
    """Whether the directory was not removed between opening and locking it."""
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False
