"""Assignment of seeds to batches: a function of the random seed, equal in every process.

Every sampler of a trainer adds seeds to every batch (DistDGLv2, section 5.6.1). The order of an
epoch depends on the original ids of the seeds, not on the partitioning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.sampling.hop import hop_key

_ORDER = ("", "order of seeds", "")


@dataclass(frozen=True)
class SampleTask:
    """One sampler's sub-batch of one batch; `seeds` are original ids and may be empty."""

    epoch: int
    batch: int
    seeds: np.ndarray


def sampler_batch_size(batch_size: int, num_samplers: int, sampler: int) -> int:
    """Seeds per iteration of one sampler; samplers differ by at most one."""
    if not 1 <= num_samplers <= batch_size:
        raise SpecError(
            f"a batch of {batch_size} seeds cannot be split among {num_samplers} samplers",
            "use at least one sampler, and at least one seed per sampler",
        )
    return batch_size * (sampler + 1) // num_samplers - batch_size * sampler // num_samplers


def batches_per_epoch(counts: Sequence[int], batch_size: int, drop_last: bool = False) -> int:
    """Batches of an epoch, given the seeds of each sampler; `drop_last` drops incomplete ones."""
    sizes = [sampler_batch_size(batch_size, len(counts), s) for s in range(len(counts))]
    pairs = list(zip(counts, sizes, strict=True))
    if drop_last:
        num_batches = min(num // size for num, size in pairs)
    else:
        num_batches = max(-(-num // size) for num, size in pairs)
    if num_batches == 0:
        raise SpecError(
            f"{sum(counts)} seeds make no batch of {batch_size}",
            "use smaller batches or drop_last=False",
        )
    return num_batches


def epoch_order(num_seeds: int, seed: int, epoch: int) -> np.ndarray:
    """Positions of the seeds in the order of an epoch, `int64`.

    Positions are sorted by a hash, so that the order does not depend on library versions.
    """
    key = np.uint64(hop_key(seed, epoch, 0, 0, _ORDER))
    numbers = _spread(np.arange(num_seeds, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key)
    # The numbers are distinct, so any sort gives the same order; this kind is the fastest.
    return np.argsort(numbers)


def schedule(
    seeds: np.ndarray,
    seeds_per_iteration: int,
    num_batches: int,
    seed: int,
    *,
    shuffle: bool = True,
    first_epoch: int = 0,
    first_batch: int = 0,
    num_epochs: int | None = None,
    ends: Sequence[int] = (),
) -> Iterator[SampleTask]:
    """All sample tasks of one seed shard, epoch after epoch, for seeds (original ids) in any order.

    `ends` are the numbers of seeds of the last batches of an epoch if different. Without `shuffle`
    seeds are sorted by original id. Batches before `first_batch` of `first_epoch` are skipped.
    Without `num_epochs` there is no end.
    """
    sizes = [seeds_per_iteration] * (num_batches - len(ends)) + list(ends)
    cuts = np.cumsum([0, *sizes])
    ids = np.sort(np.asarray(seeds, np.int64))
    last = None if num_epochs is None else first_epoch + num_epochs
    epochs = count(first_epoch) if last is None else range(first_epoch, last)
    for epoch in epochs:
        order = ids[epoch_order(len(ids), seed, epoch)] if shuffle else ids
        for batch in range(first_batch if epoch == first_epoch else 0, num_batches):
            yield SampleTask(epoch, batch, order[cuts[batch] : cuts[batch + 1]])


def interleave(shards: Iterable[Iterator[SampleTask]]) -> Iterator[SampleTask]:
    """Interleave the tasks of all seed shards of a sampler: one of each per batch."""
    for tasks in zip(*shards, strict=True):
        yield from tasks


def _spread(x: np.ndarray) -> np.ndarray:
    """Hash 64 bits (SplitMix64), as the kernels do but without compilation."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    spread: np.ndarray = x ^ (x >> np.uint64(31))
    return spread
