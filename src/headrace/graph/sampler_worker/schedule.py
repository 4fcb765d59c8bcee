"""Which seeds form which batch: functions of the seed alone, the same in every process.

Every sampler of a trainer takes its share of every batch from its own seeds (DistDGLv2, section
5.6.1). The order of an epoch depends on the original ids of the seeds, not on how the graph is cut.
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
    """One sampler's part of one batch.

    Attributes:
        epoch: From 0.
        batch: Within the epoch, from 0.
        seeds: Original ids; none if the sampler has no more in this epoch.
    """

    epoch: int
    batch: int
    seeds: np.ndarray


def share_of(batch_size: int, num_samplers: int, sampler: int) -> int:
    """Seeds that one sampler adds to every batch; shares differ by at most one.

    Raises:
        SpecError: A batch has fewer seeds than there are samplers.
    """
    if not 1 <= num_samplers <= batch_size:
        raise SpecError(
            f"a batch of {batch_size} seeds is to be made by {num_samplers} samplers",
            "use at least one sampler, and at least one seed for each",
        )
    return batch_size * (sampler + 1) // num_samplers - batch_size * sampler // num_samplers


def batches_per_epoch(counts: Sequence[int], batch_size: int, drop_last: bool = False) -> int:
    """Batches until every seed was taken, or as long as all are whole.

    Args:
        counts: Seeds of each sampler.
        batch_size: Seeds of all samplers in a batch.
        drop_last: Whether to leave out batches that lack seeds.

    Raises:
        SpecError: There would be no batch at all.
    """
    shares = [share_of(batch_size, len(counts), s) for s in range(len(counts))]
    pairs = list(zip(counts, shares, strict=True))
    if drop_last:
        num_batches = min(num // share for num, share in pairs)
    else:
        num_batches = max(-(-num // share) for num, share in pairs)
    if num_batches == 0:
        raise SpecError(
            f"{sum(counts)} seeds make no batch of {batch_size}",
            "use smaller batches, or keep the last one",
        )
    return num_batches


def epoch_order(num_seeds: int, seed: int, epoch: int) -> np.ndarray:
    """Positions of the seeds in the order of an epoch, `int64`.

    Each position gets a number from its key and all are sorted by it, so that no version of any
    library changes the order.
    """
    key = np.uint64(hop_key(seed, epoch, 0, 0, _ORDER))
    numbers = _spread(np.arange(num_seeds, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key)
    # All of them differ, so that no sort could give another order; this kind is the fastest.
    return np.argsort(numbers)


def schedule(
    seeds: np.ndarray,
    share: int,
    num_batches: int,
    seed: int,
    *,
    shuffle: bool = True,
    first_epoch: int = 0,
    first_batch: int = 0,
    num_epochs: int | None = None,
    ends: Sequence[int] = (),
) -> Iterator[SampleTask]:
    """All jobs of one sampler, one epoch right after the other.

    Args:
        seeds: Original ids of the sampler's seeds, in any order.
        share: How many it adds to a batch; see `share_of`.
        num_batches: Per epoch, the same for all samplers; see `batches_per_epoch`.
        seed: Of all orders.
        shuffle: Whether to change the order in every epoch; else it is by original id.
        first_epoch: Where to begin ...
        first_batch: ... and with which batch of it: what comes is as if all before had been made.
        num_epochs: How many, with the first; none to go on for ever.
        ends: How many it adds to the last batches of an epoch, if that is not its share.
    """
    sizes = [share] * (num_batches - len(ends)) + list(ends)
    cuts = np.cumsum([0, *sizes])
    ids = np.sort(np.asarray(seeds, np.int64))
    last = None if num_epochs is None else first_epoch + num_epochs
    epochs = count(first_epoch) if last is None else range(first_epoch, last)
    for epoch in epochs:
        order = ids[epoch_order(len(ids), seed, epoch)] if shuffle else ids
        for batch in range(first_batch if epoch == first_epoch else 0, num_batches):
            yield SampleTask(epoch, batch, order[cuts[batch] : cuts[batch + 1]])


def side_by_side(lanes: Iterable[Iterator[SampleTask]]) -> Iterator[SampleTask]:
    """Jobs of all lanes of a sampler: for each batch one of every lane, in their order."""
    for jobs in zip(*lanes, strict=True):
        yield from jobs


def _spread(x: np.ndarray) -> np.ndarray:
    """Spread 64 bits (SplitMix64); what the kernels do, without the time to compile."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    spread: np.ndarray = x ^ (x >> np.uint64(31))
    return spread
