"""Anonymous shared memory, freed when the last process that maps it exits."""

from __future__ import annotations

import mmap
import os

import numpy as np

from headrace.core.errors import MissingExtraError


def memory_file(data: bytes) -> int:
    """Descriptor of a memory file with these bytes, to pass to a new process."""
    fd = _create()
    with open(os.dup(fd), "wb") as file:
        file.write(data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


class Segment:
    """Memory that two processes map; it owns the descriptor `fd`."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _create() if fd is None else fd
        self.num_bytes = 0
        self._memory = np.empty(0, np.uint8)

    def __del__(self) -> None:
        # The mapping is released with its last array.
        os.close(self.fd)

    def reserve(self, num_bytes: int) -> None:
        """Grow the segment; for the writer, while no reader uses it."""
        if num_bytes > self.num_bytes:
            # An eighth more, to grow rarely; untouched pages take no memory.
            os.ftruncate(self.fd, num_bytes + num_bytes // 8)
            self.map(num_bytes + num_bytes // 8)

    def map(self, num_bytes: int) -> np.ndarray:
        """Map at least `num_bytes`; for the reader."""
        if num_bytes > self.num_bytes:
            self._memory = np.frombuffer(mmap.mmap(self.fd, num_bytes), np.uint8)
            self.num_bytes = num_bytes
        return self._memory[:num_bytes]


class Held:
    """Memory of one batch as a numpy buffer, kept alive by any array of it."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__


def _create() -> int:
    if not hasattr(os, "memfd_create"):
        raise MissingExtraError(
            "anonymous shared memory is not available on this system", "run samplers on Linux"
        )
    return os.memfd_create("headrace", os.MFD_CLOEXEC)
