"""Temporary folders of runs: keys, sockets and logs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from headrace.prefork.identity import namespace

PREFIX = "headrace-run-"
"""Name prefix of temporary folders; pid namespace and pid of the creator follow."""


@contextmanager
def run_folder() -> Iterator[Path]:
    """Create a temporary folder; remove it at the end. Also removes folders of dead processes."""
    above = Path(tempfile.gettempdir())
    remove_forgotten(above)
    prefix = f"{PREFIX}{namespace()}.{os.getpid()}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_forgotten(above: Path) -> None:
    """Remove this user's temporary folders whose process has exited."""
    here = str(namespace())
    for folder in above.glob(f"{PREFIX}*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        where, _, number = owner.partition(".")
        with suppress(OSError):
            status = folder.lstat()
            is_ours = status.st_uid == os.getuid() and folder.is_dir() and not folder.is_symlink()
            # A pid is only valid in its namespace.
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
