"""Hashes of texts that lie one after another."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def hash_texts(data, offsets, seed):
    """A 64-bit hash per text (FNV-1a, then SplitMix64's finaliser).

    Args:
        data: Bytes of all texts, `uint8`.
        offsets: Where each begins in `data`; one more.
        seed: Another seed gives other hashes.
    """
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(hashes)):
        h = np.uint64(0xCBF29CE484222325) ^ np.uint64(seed)
        for j in range(offsets[i], offsets[i + 1]):
            h = (h ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes[i] = h ^ (h >> np.uint64(31))
    return hashes
