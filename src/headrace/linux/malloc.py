"""glibc allocator settings: when freed memory is kept or returned to the system."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# Constants of glibc's `malloc.h` and of Linux's `mman.h`.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_MMAP_MAX = -4
_ARENA_MAX = -8
_MADV_HUGEPAGE = 14

_KEPT_BYTES = 256 << 20
_LARGEST_KEPT_BYTES = 32 << 20
_NEVER = -1
_PAGE_BYTES = 4096

# Address space, not memory: only touched pages use memory.
_RESERVED_BYTES = 4 << 30


def share_one_heap() -> bool:
    """Let all threads of this process share one heap; whether this is supported.

    By default glibc gives each thread its own heap, and `malloc_trim` never returns the end of such
    a heap: a parameter server kept 50 MiB after a message of 200 MiB. Call it before threads start.
    """
    return _set_options((_ARENA_MAX, 1))


def keep_freed_memory() -> bool:
    """Keep up to 256 MiB of freed memory in this process; whether this is supported.

    Replies are allocated by one thread and freed by another. By default glibc returns the memory
    each time, and the kernel clears new pages for the next reply. Gathering 10,000 x 128 float32
    took 1.02 to 1.17 s of CPU per GB (client and store) without this and 0.81 to 0.96 s with it
    (three alternating runs each, on a busy machine). All threads share one heap.
    """
    return _set_options(
        (_TRIM_THRESHOLD, _KEPT_BYTES), (_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES), (_ARENA_MAX, 1)
    )


def return_freed_memory() -> None:
    """Return all freed memory to the system, if supported."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reuse_memory() -> bool:
    """Keep all freed memory in this process, in huge pages if possible; whether this is supported.

    By default glibc returns the tens of megabytes of each batch to the system, and the kernel
    clears new pages, 4 KB at a time, for the next. A step of GraphSAGE 2 x 64 with 92,000 nodes of
    128 features took 208 to 229 ms of a core without this and 168 to 197 ms with it (two medians
    each, on a busy machine; see `benchmarks/data_path.py`). The process keeps its peak memory until
    it ends. Existing allocations are not affected: call it early.
    """
    try:
        libc = ctypes.CDLL(None)
        sbrk, madvise, malloc, free = libc.sbrk, libc.madvise, libc.malloc, libc.free
    except (OSError, AttributeError):
        return False
    if not _set_options((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_ARENA_MAX, 1)):
        return False
    sbrk.restype = malloc.restype = ctypes.c_void_p
    free.argtypes = (ctypes.c_void_p,)
    begin = sbrk(ctypes.c_ssize_t(0))
    # The heap grows to this size and never shrinks, so one madvise is enough.
    free(malloc(ctypes.c_size_t(_RESERVED_BYTES)))
    begin += -begin % _PAGE_BYTES
    num_bytes = sbrk(ctypes.c_ssize_t(0)) - begin
    # If the address space is unavailable, freed memory is kept in small pages.
    if num_bytes > 0:
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes), _MADV_HUGEPAGE)
    return True


def _set_options(*options: tuple[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(name, value) == 1 for name, value in options)
