"""Resident memory of a step's allocations: a process that does nothing else makes them again.

    python -m headrace.profiling.step_estimate.replay FILE

The allocator keeps freed memory in pieces, so a process needs more than the largest sum of its
tensors: the more, the more its batches differ in size. Small allocations between tensors, of Python
and of autograd, make it worse: a hole that has lost a few bytes does not fit a tensor of its size
any more. FILE has the allocations and frees of a step and the relative sizes of some batches; its
result is the growth of this process's anonymous memory, with the allocator's settings of a trainer.
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

_PAGE_BYTES = 4096
_ALIGNMENT = 64
"""Of torch's tensors."""

_SMALL_SIZES = (48, 64, 64, 96, 104, 176, 176, 176, 312, 1376)
"""Bytes of the small allocations that a process makes for each tensor.

24 steps of PNA 2 x 64 on Amazon-Photo had 51,357 of them, and 5,042 tensors; these are quantiles of
their sizes. Without them the replayed heap has 820 MB, with them 1,110 to 1,160, and that of the
process has 1,210 to 1,310.
"""

_ROUNDS = 3
"""How often the batches are repeated. The heap hardly grew after 60 batches."""


def resident_bytes(
    held: Sequence[tuple[int, int]],
    step: Sequence[tuple[int, int]],
    scales: Sequence[float] = (1.0, 1.0, 1.0),
) -> int:
    """Anonymous memory of a process that has some storages and repeats a step.

    Args:
        held: Number and bytes of storages that exist before the step.
        step: Allocations and frees of the step, in order.
        scales: Sizes of successive batches, relative to that of the step.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        path = Path(folder) / "events.npz"
        np.savez(
            path,
            held=np.array(held, np.int64).reshape(-1, 2),
            step=np.array(step, np.int64).reshape(-1, 2),
            scales=np.array([*scales, 1.0]),
        )
        ran = subprocess.run(
            [sys.executable, "-m", __name__, str(path)], capture_output=True, text=True, check=True
        )
    return int(json.loads(ran.stdout)["bytes"])


def replay(held: np.ndarray, step: np.ndarray, scales: np.ndarray) -> int:
    """Make the allocations of all batches; returns the growth of anonymous memory."""
    libc = ctypes.CDLL(None)
    libc.free.argtypes = (ctypes.c_void_p,)
    libc.malloc.restype = ctypes.c_void_p
    before = memory_bytes()
    live: dict[int, list[int]] = {}
    _apply(libc, live, held)
    kept = set(live)
    # Parameters and the optimizer's state are not freed.
    own = step[~np.isin(step[:, 0], list(kept))]
    for scale in scales.tolist() * _ROUNDS:
        scaled = own.copy()
        scaled[:, 1] = np.ceil(np.abs(own[:, 1]) * scale) * np.sign(own[:, 1])
        _apply(libc, live, scaled)
        for number in set(live) - kept:
            _free(libc, live.pop(number))
    return memory_bytes() - before


def _apply(libc: ctypes.CDLL, live: dict[int, list[int]], events: np.ndarray) -> None:
    for number, size in events.tolist():
        if size > 0:
            pointer = ctypes.c_void_p()
            if libc.posix_memalign(
                ctypes.byref(pointer), ctypes.c_size_t(_ALIGNMENT), ctypes.c_size_t(size)
            ):
                raise MemoryError(f"no memory for {size} bytes")
            assert pointer.value is not None
            memory = (ctypes.c_uint8 * size).from_address(pointer.value)
            np.frombuffer(memory, np.uint8)[::_PAGE_BYTES] = 1
            small = [libc.malloc(ctypes.c_size_t(num)) for num in _SMALL_SIZES]
            live[number] = [pointer.value, *small]
        elif size < 0 and number in live:
            _free(libc, live.pop(number))


def _free(libc: ctypes.CDLL, pointers: list[int]) -> None:
    for pointer in reversed(pointers):
        libc.free(pointer)


def main(path: str) -> None:
    """Replay the file's step and print the bytes."""
    reuse_memory()
    with np.load(path) as saved:
        found = replay(saved["held"], saved["step"], saved["scales"])
    sys.stdout.write(json.dumps({"bytes": found}))


if __name__ == "__main__":
    main(sys.argv[1])
