"""Memory pool for batches."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict

import numpy as np
import torch
from torch import Tensor

# The allocator reuses smaller blocks itself.
_LARGE_BYTES = 1 << 20

_MAX_FREE = 2


class BufferPool:
    """Allocates tensors and reuses their memory after the last reference is dropped.

    The kernel zeroes every page it gives to a process, which takes twice as long as filling it with
    features (measured with 100,000 rows of 400 bytes: 38 ms, of which the copy takes 10).
    """

    def __init__(self) -> None:
        self._free: dict[object, list[np.ndarray]] = defaultdict(list)
        self._lent: dict[int, weakref.ref[np.ndarray]] = {}

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()

    def empty(self, purpose: object, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """An uninitialised tensor; those of one `purpose` should have similar sizes."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < _LARGE_BYTES:
            return torch.empty(shape, dtype=dtype)
        buffer = self._pop(purpose, num_bytes)
        lent = buffer[:num_bytes]
        # The tensor and all its views keep the array alive.
        number = id(lent)

        def release(_: object) -> None:
            del self._lent[number]
            free = self._free[purpose]
            free.append(buffer)
            del free[:-_MAX_FREE]

        self._lent[number] = weakref.ref(lent, release)
        return torch.from_numpy(lent).view(dtype).view(shape)

    def _pop(self, purpose: object, num_bytes: int) -> np.ndarray:
        free = self._free[purpose]
        while free:
            buffer = free.pop()
            if len(buffer) >= num_bytes:
                return buffer
        # numpy requests huge pages, which are zeroed faster.
        return np.empty(num_bytes + num_bytes // 8, np.uint8)
