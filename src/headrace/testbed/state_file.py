"""The state file of a testbed, and the lock that lets one command at a time change it."""

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
from headrace.testbed.layout import FOLDER, HostLayout

_LOCK_S = 180.0
_FILE = "testbed.json"


def read(name: str) -> HostLayout | None:
    """What is written of a testbed; none if there is nothing.

    Raises:
        SpecError: It was written by another version, or others could have written it.
    """
    path = FOLDER / name / _FILE
    try:
        _check_is_own(path.parent)
        return HostLayout.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except PermissionError:
        raise SpecError(f"{path} may be read by root alone", "use sudo") from None
    except ValidationError:
        raise SpecError(
            f"{path} is not a testbed of this version of headrace",
            "take it down with the version that made it",
        ) from None


def write(layout: HostLayout) -> None:
    """Write it down, all or nothing."""
    path = layout.folder / _FILE
    new = path.with_suffix(".new")
    with new.open("w") as file:
        file.write(layout.model_dump_json(indent=2))
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def forget(layout: HostLayout) -> None:
    """Remove all files; the state file last, so that the rest can still be found after a crash."""
    for path in layout.folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != _FILE:
            path.unlink()
    (layout.folder / _FILE).unlink()


def names() -> list[str]:
    """All testbeds that are written down."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{_FILE}"))


@contextmanager
def locked(name: str) -> Iterator[Path]:
    """The testbed's folder, while nobody else changes the testbed; removed if left empty.

    Raises:
        RunError: Somebody else does, for too long.
        SpecError: Others can write to the folder.
    """
    folder = FOLDER / name
    end_s = time.monotonic() + _LOCK_S
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
                f"another command changes testbed {name!r} since {_LOCK_S:g} s",
                "end that one, or choose another --name",
            )
        time.sleep(0.05)


def _open(folder: Path) -> int | None:
    """Open the folder, made if it is not there; none if somebody removes it at this moment."""
    try:
        FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        _check_is_own(folder)
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None


def _check_is_own(folder: Path) -> None:
    """See that a testbed's file, which names processes to be killed, was written by its user."""
    for each in (FOLDER, folder):
        status = each.lstat()
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.geteuid())
        if not is_own or status.st_mode & 0o022:
            raise SpecError(f"others can write to {each}", f"see what it is, and remove it: {each}")


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(handle: int, folder: Path) -> bool:
    """Whether the folder was not removed between opening and locking it."""
    try:
        return os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False
