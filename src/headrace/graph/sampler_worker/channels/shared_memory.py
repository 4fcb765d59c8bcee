"""Shared memory that has no name: it is gone when the last process that maps it is.

However a process ends, nothing is left in `/dev/shm` or anywhere else.
"""

from __future__ import annotations

import mmap
import os

import numpy as np

from headrace.core.errors import MissingExtraError


def memory_file(data: bytes) -> int:
    """A descriptor of a file in memory with these bytes, for a process that is started with it."""
    fd = _create()
    with open(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class Segment:
    """A piece of memory that two processes map.

    Args:
        fd: Descriptor of a memory file, which the segment owns from now on; none for a new one.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _create() if fd is None else fd
        self.num_bytes = 0
        self._memory = np.empty(0, np.uint8)

    def __del__(self) -> None:
        # The mapping itself goes with the last array that shows it.
        os.close(self.fd)

    def reserve(self, num_bytes: int) -> None:
        """Make room: for the side that writes, when nobody looks at the segment."""
        if num_bytes > self.num_bytes:
            # An eighth more, so that growing ends soon; what is not touched takes no memory.
            os.ftruncate(self.fd, num_bytes + num_bytes // 8)
            self.map(num_bytes + num_bytes // 8)

    def map(self, num_bytes: int) -> np.ndarray:
        """See at least so many bytes; for the side that reads."""
        if num_bytes > self.num_bytes:
            self._memory = np.frombuffer(mmap.mmap(self.fd, num_bytes), np.uint8)
            self.num_bytes = num_bytes
        return self._memory[:num_bytes]


class Held:
    """Memory of one batch as numpy sees it: lives as long as any array of it.

    Args:
        memory: The memory, which stays as long.
    """

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__


def _create() -> int:
    if not hasattr(os, "memfd_create"):
        raise MissingExtraError(
            "memory cannot be shared without a name on this system", "run samplers on Linux"
        )
    return os.memfd_create("headrace", os.MFD_CLOEXEC)
