"""Space on disks: taken before it is promised, and files that stay whole without it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def reserve(path: Path, num_bytes: int) -> None:
    """Give a file blocks for `num_bytes`; new ones are zeros.

    Otherwise a process that writes to a mapping of the file is killed when the disk is full.

    Raises:
        OSError: There is no space.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if num_bytes:
            os.posix_fallocate(file, 0, num_bytes)
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(file)


def append_whole(path: Path, data: bytes) -> None:
    """Append all of `data` or nothing, in one write: readers get no part of it.

    Raises:
        OSError: It cannot be written.
    """
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
        except OSError:
            file.truncate(size)
            raise


def has_space(folder: Path) -> bool:
    """Whether a file in a folder can grow by a block; true if it is unknown."""
    try:
        return os.statvfs(folder).f_bavail > 0
    except OSError:
        return True
