"""Keep mapped files in memory: read them once in order, and say how much is there.

Rows read at random from a cold file come 80 times slower than from memory (23 K instead of 1.7 M
rows of 256 bytes per second), rows read in order do not.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_READ_BYTES = 1 << 20
_MINCORE_BYTES = 1 << 30


class PageCacheWarmer:
    """Reads files in order, in a thread of its own.

    Args:
        files: What to read; larger files first is not needed, they are read one by one.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = tuple(files)
        self.total_bytes = sum(file.stat().st_size for file in self._files)
        self.read_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warmer", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; whether it was reached."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop reading."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        buffer = memoryview(bytearray(_READ_BYTES))
        for path in self._files:
            with path.open("rb", buffering=0) as file:
                while not self._stop.is_set() and (num_bytes := file.readinto(buffer)):
                    self.read_bytes += num_bytes


def resident_bytes(array: np.ndarray) -> int | None:
    """Bytes of a mapped array that are in memory now; none if the system does not tell."""
    if array.nbytes == 0:
        return 0
    page = mmap.PAGESIZE
    begin = array.ctypes.data - array.ctypes.data % page
    end = array.ctypes.data + array.nbytes
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        mincore = libc.mincore
    except (OSError, AttributeError):
        return None
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    num_pages = 0
    for at in range(begin, end, _MINCORE_BYTES):
        length = min(_MINCORE_BYTES, end - at)
        pages = np.zeros(-(-length // page), np.uint8)
        if mincore(at, length, pages.ctypes.data) != 0:
            return None
        num_pages += int(np.count_nonzero(pages & 1))
    return min(num_pages * page, array.nbytes)


def anonymous_bytes() -> int:
    """Memory of this process that no file backs (`RssAnon`); 0 if the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")]
    return found[0] if found else 0
