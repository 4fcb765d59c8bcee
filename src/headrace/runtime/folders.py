"""A run's folder: its keys, its socket and its logs, for this user alone, gone at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "headrace-run-"


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder, removed at the end with those of runs that could not remove theirs."""
    above = Path(tempfile.gettempdir())
    remove_forgotten(above)
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=above))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_forgotten(above: Path) -> None:
    """Remove folders of this user's runs whose process was killed."""
    for folder in above.glob(f"{_PREFIX}*"):
        number = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with suppress(OSError):
            status = folder.lstat()
            is_ours = status.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
            if is_ours and number.isdigit() and not _is_alive(int(number)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
