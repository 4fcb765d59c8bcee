"""A run's folder: its keys, its socket and its logs, for this user alone, gone at the end.

Of a run that failed the logs stay, without the keys.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.prefork.identity import namespace

PREFIX = "headrace-run-"
"""How names of run folders begin; pid namespace and process of the owner follow."""


LOGS_PREFIX = "headrace-logs-"
"""How names of folders begin that have the logs of a run that failed."""

_MOST_KEPT = 10


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder, removed at the end with those of runs that could not remove theirs."""
    above = Path(tempfile.gettempdir())
    remove_forgotten(above)
    prefix = f"{PREFIX}{namespace()}.{os.getpid()}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def keep_logs(folder: Path) -> Path | None:
    """Move the logs of a run to a folder that stays, and forget the oldest of such folders.

    Returns:
        Where they are; none if nobody said anything.
    """
    logs = [log for log in sorted(folder.glob("*.log")) if log.stat().st_size]
    if not logs:
        return None
    above = folder.parent
    prefix = f"{LOGS_PREFIX}{os.getuid()}-"
    for _, old in sorted(_own_folders(above, prefix))[: 1 - _MOST_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    place = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
    for log in logs:
        shutil.move(log, place)
    return place


def _own_folders(above: Path, prefix: str) -> Iterator[tuple[float, Path]]:
    """Folders of this user, with their age; what others call like that must not push them out."""
    for path in above.glob(f"{prefix}*"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                yield status.st_mtime, path


def remove_forgotten(above: Path) -> None:
    """Remove folders of this user's runs whose process was killed."""
    here = str(namespace())
    for folder in above.glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        where, _, number = owner.partition(".")
        with suppress(OSError):
            status = folder.lstat()
            is_ours = status.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
            # Numbers of processes mean nothing outside of their namespace.
            is_known = where == here and number.isdigit()
            if is_ours and is_known and not _is_alive(int(number)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
