"""Assignment of training seeds to samplers: equal counts, local seeds first.

DistDGLv2 (section 5.6.1) cuts the sequence of all training nodes into equal ranges and assigns each
to the machine that owns most of it; a partition with more seeds than average shifts all ranges
after it. Here samplers first take the seeds of their own graph partition, and only the remainder
comes from partitions with a surplus: no split with equal counts has more local seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import PartitionedGraph


def split_seeds(seeds: Sequence[np.ndarray], samplers: Sequence[int]) -> list[np.ndarray]:
    """Assign training nodes to samplers; returns new ids per sampler, ascending, `int64`.

    A sampler gets contiguous ranges of its partition's seeds, so that samplers of one partition
    work on different clusters. Counts differ by at most one; the extra seeds go where they stay
    local, else to the first samplers.

    Args:
        seeds: New ids of the seeds of every graph partition, ascending.
        samplers: Graph partition on the machine of each sampler.
    """
    num_parts, num_samplers = len(seeds), len(samplers)
    if num_samplers == 0:
        raise SpecError("there are no samplers", "configure at least 1")
    if not all(0 <= part < num_parts for part in samplers):
        raise SpecError(
            f"samplers use partitions {min(samplers)} to {max(samplers)}, there are {num_parts}",
            f"use 0 to {num_parts - 1}",
        )
    have = np.array([len(own) for own in seeds], np.int64)
    counts = _counts(have, np.array(samplers, np.int64))
    taken: list[list[np.ndarray]] = [[] for _ in samplers]
    missing = counts.copy()
    spare: list[np.ndarray] = []
    for part, own in enumerate(seeds):
        ids = np.asarray(own, np.int64)
        here = [s for s in range(num_samplers) if samplers[s] == part]
        # Too few seeds are spread evenly over the partition's samplers.
        kept = min(len(ids), int(counts[here].sum()))
        cuts = _even_cuts(kept, counts[here])
        for s, low, high in zip(here, cuts[:-1], cuts[1:], strict=True):
            taken[s].append(ids[low:high])
            missing[s] -= high - low
        spare.append(ids[kept:])
    rest = np.concatenate(spare) if spare else np.empty(0, np.int64)
    ends = np.cumsum(missing)
    for s in range(num_samplers):
        taken[s].append(rest[ends[s] - missing[s] : ends[s]])
    return [np.sort(np.concatenate(own)) for own in taken]


def training_seeds(
    graph: PartitionedGraph, node_type: str, samplers: Sequence[int], split: str = "train"
) -> list[np.ndarray]:
    """Assign the training nodes of a graph to samplers; see `split_seeds`."""
    parts = [graph.part(number) for number in range(graph.num_parts)]
    seeds = [part.split(node_type, split) + part.start(node_type) for part in parts]
    return split_seeds(seeds, samplers)


def _counts(have: np.ndarray, samplers: np.ndarray) -> np.ndarray:
    """Seeds per sampler, differing by at most one; extra seeds go where they stay local."""
    num_seeds, num_samplers = int(have.sum()), len(samplers)
    counts = np.full(num_samplers, num_seeds // num_samplers, np.int64)
    odd = num_seeds - int(counts.sum())
    left = have - np.bincount(samplers, minlength=len(have)) * (num_seeds // num_samplers)
    chosen: list[int] = []
    for s, part in enumerate(samplers):
        if left[part] > 0:
            left[part] -= 1
            chosen.append(s)
    others = np.setdiff1d(np.arange(num_samplers), chosen)
    counts[[*chosen, *others][:odd]] += 1
    return counts


def _even_cuts(num: int, wanted: np.ndarray) -> np.ndarray:
    """Split `num` seeds in proportion to `wanted`, none above its value."""
    total = int(wanted.sum())
    ends = np.cumsum(wanted)
    return np.append(0, ends * num // max(total, 1))
