"""When processes that others ask keep memory that was freed, and how they give it back."""

from __future__ import annotations

import ctypes
from contextlib import suppress

# Numbers of glibc's `malloc.h`.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8

_KEPT_BYTES = 256 << 20
_LARGEST_KEPT_BYTES = 32 << 20


def share_one_heap() -> bool:
    """Let all threads of this process share one heap; whether the system can.

    By default glibc gives each thread a heap of its own, and `malloc_trim` never returns the end of
    such a heap, however much of it is free: 50 MiB stayed with a parameter server after a message
    of 200 MiB. Call it before the threads begin.
    """
    return _set_options((_ARENA_MAX, 1))


def keep_freed_memory() -> bool:
    """Let this process give memory back to the system late; whether the system can.

    Replies are received into memory that one thread takes and another frees. By default glibc
    returns it each time, and the system clears new pages for the next reply. To gather 10,000 x 128
    float32, client and store together needed 1.02 to 1.17 s of CPU per GB without this and 0.81 to
    0.96 with it (three runs each, taking turns, on a busy machine). Up to 256 MiB stay with the
    process, all threads share one heap.
    """
    return _set_options(
        (_TRIM_THRESHOLD, _KEPT_BYTES), (_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES), (_ARENA_MAX, 1)
    )


def return_freed_memory() -> None:
    """Give all memory that was freed back to the system, where it can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _set_options(*options: tuple[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(name, value) == 1 for name, value in options)


# Numbers of glibc's `malloc.h` and of Linux's `mman.h`.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_ARENA_MAX = -8
_MADV_HUGEPAGE = 14

_NEVER = -1
_PAGE_BYTES = 4096

# Address space, not memory: only what is touched takes any.
_RESERVED_BYTES = 4 << 30


def reuse_memory() -> bool:
    """Let this process keep what it frees, in huge pages if it can; whether the system allows it.

    Tensors of a batch have tens of megabytes. By default glibc gives each back to the system and
    gets new pages for the next, which the system clears, 4 KB at a time, in the trainer's time: a
    step of GraphSAGE 2 x 64 with 92,000 nodes of 128 features took 208 to 229 ms of a core, and
    168 to 197 ms with this (two medians each, on a busy machine; `benchmarks/data_path.py`
    compares both). The process keeps the most
    it ever used until it ends. What is there already stays as it is: call it early.
    """
    try:
        libc = ctypes.CDLL(None)
        mallopt, sbrk, madvise = libc.mallopt, libc.sbrk, libc.madvise
        malloc, free = libc.malloc, libc.free
    except (OSError, AttributeError):
        return False
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_ARENA_MAX, 1))
    if not all(mallopt(name, value) == 1 for name, value in settings):
        return False
    sbrk.restype = malloc.restype = ctypes.c_void_p
    free.argtypes = (ctypes.c_void_p,)
    begin = sbrk(ctypes.c_ssize_t(0))
    # The heap grows over all of it and does not shrink again, so it can be marked once.
    free(malloc(ctypes.c_size_t(_RESERVED_BYTES)))
    begin += -begin % _PAGE_BYTES
    num_bytes = sbrk(ctypes.c_ssize_t(0)) - begin
    # Where the address space is not to be had, freed memory is kept in small pages.
    if num_bytes > 0:
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes), _MADV_HUGEPAGE)
    return True
