"""Counter-based random draws, a function of seed, stream and iteration only."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot


@hot
def draw_index(seed, stream, iteration, length):
    """Index in [0, length) drawn for one edge or task and one iteration (SplitMix64 finaliser)."""
    x = (
        np.uint64(seed) * np.uint64(0x9E3779B97F4A7C15)
        + np.uint64(stream) * np.uint64(0xD1B54A32D192ED03)
        + np.uint64(iteration) * np.uint64(0x8CB92BA72F3D8DD7)
    )
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return np.int64((x >> np.uint64(32)) * np.uint64(length) >> np.uint64(32))
