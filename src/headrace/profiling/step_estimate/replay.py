"""Resident memory of a step's allocations: they are made again by a process that does nothing else.

    python -m headrace.profiling.step_estimate.replay FILE

The allocator keeps freed memory in pieces, so a process needs more than the largest sum of its
tensors. FILE has the allocations and frees of a step; its result is the growth of this process's
anonymous memory, with the allocator's settings of a trainer.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.linux.malloc import reuse_memory
from headrace.linux.memory import memory_bytes

_NUM_STEPS = 3
_ALIGNMENT = 64
"""Of torch's tensors."""


def resident_bytes(held: Sequence[tuple[int, int]], step: Sequence[tuple[int, int]]) -> int:
    """Anonymous memory of a process that has some storages and repeats a step."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        path = Path(folder) / "events.npz"
        np.savez(
            path,
            held=np.array(held, np.int64).reshape(-1, 2),
            step=np.array(step, np.int64).reshape(-1, 2),
        )
        ran = subprocess.run(
            [sys.executable, "-m", __name__, str(path)], capture_output=True, text=True, check=True
        )
    return int(json.loads(ran.stdout)["bytes"])


def replay(held: np.ndarray, step: np.ndarray) -> int:
    """Make the allocations; returns the growth of anonymous memory."""
    libc = ctypes.CDLL(None)
    libc.free.argtypes = (ctypes.c_void_p,)
    before = memory_bytes()
    live: dict[int, int] = {}
    _apply(libc, live, held)
    for _ in range(_NUM_STEPS):
        kept = set(live)
        _apply(libc, live, step)
        for number in set(live) - kept:
            libc.free(live.pop(number))
    return memory_bytes() - before


def _apply(libc: ctypes.CDLL, live: dict[int, int], events: np.ndarray) -> None:
    for number, size in events.tolist():
        if size > 0:
            pointer = ctypes.c_void_p()
            if libc.posix_memalign(
                ctypes.byref(pointer), ctypes.c_size_t(_ALIGNMENT), ctypes.c_size_t(size)
            ):
                raise MemoryError(f"no memory for {size} bytes")
            assert pointer.value is not None
            ctypes.memset(pointer.value, 1, size)
            live[number] = pointer.value
        elif size < 0 and number in live:
            libc.free(live.pop(number))


def main(path: str) -> None:
    """Replay the file's step and print the bytes."""
    reuse_memory()
    with np.load(path) as saved:
        found = replay(saved["held"], saved["step"])
    sys.stdout.write(json.dumps({"bytes": found}))


if __name__ == "__main__":
    main(sys.argv[1])
