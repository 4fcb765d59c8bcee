"""Counter-based random numbers: each draw depends only on its key and number."""

from __future__ import annotations

import numpy as np
from numba import njit

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(forceinline=True)
def mix(x):
    """SplitMix64 finaliser."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(forceinline=True)
def stream_of(key, original, tree):
    """Start of a node's random stream; `tree` separates the trees of disjoint sampling."""
    start = key + np.uint64(original) * GOLDEN + np.uint64(tree) * np.uint64(0xD1B54A32D192ED03)
    return mix(start)


@njit(forceinline=True)
def draw_below(stream, number, bound):
    """Draw `number` of a stream as an index below `bound`, which is less than 2**32."""
    bits = mix(stream + np.uint64(number + 1) * GOLDEN) >> np.uint64(32)
    return np.int64((bits * np.uint64(bound)) >> np.uint64(32))


@njit(forceinline=True)
def draw_unit(stream, number):
    """Draw `number` of a stream in (0, 1], with 53 bits."""
    bits = mix(stream + np.uint64(number + 1) * GOLDEN) >> np.uint64(11)
    return (np.float64(bits) + 1.0) * 2.0**-53
