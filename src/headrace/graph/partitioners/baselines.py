"""Partitioners that ignore edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.graph.partitioners._base import OnStep, Question

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Hash:
    """Assigns a node by a hash of its id and the seed; balances all constraints statistically."""

    name = "hash"

    def assign(self, question: Question, on_step: OnStep) -> np.ndarray:
        """Partition the graph; see `Partitioner`."""
        on_step("hash")
        num_nodes = question.adjacency.num_nodes
        limits = np.cumsum(question.shares)[:-1]
        parts = np.empty(num_nodes, np.int32)
        for start in range(0, num_nodes, _BLOCK):
            stop = min(start + _BLOCK, num_nodes)
            drawn = _unit(np.arange(start, stop, dtype=np.uint64), question.seed)
            parts[start:stop] = np.searchsorted(limits, drawn, side="right")
        return parts


@dataclass(frozen=True)
class Range:
    """Assigns ranges of ids to partitions; effective if neighbouring nodes have close ids."""

    name = "range"

    def assign(self, question: Question, on_step: OnStep) -> np.ndarray:
        """Partition the graph; see `Partitioner`."""
        on_step("range")
        weights = question.constraints[0].weights
        if weights is None:
            weights = np.ones(question.adjacency.num_nodes, np.uint8)
        before = np.cumsum(weights, dtype=np.float64)
        # Compare the midpoint of a node's weight, so that rounding favours no partition.
        before -= weights / 2
        total = float(weights.sum(dtype=np.int64))
        limits = np.cumsum(question.shares)[:-1] * total
        return np.searchsorted(limits, before, side="right").astype(np.int32)


def _unit(ids: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) for every id (SplitMix64)."""
    start = np.uint64(seed % 2**64 * 0xD1B54A32D192ED03 % 2**64)
    x = ids * np.uint64(0x9E3779B97F4A7C15) + start
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    unit: np.ndarray = (x >> np.uint64(11)) * 2.0**-53
    return unit
