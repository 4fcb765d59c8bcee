"""Assignment of seeds to samplers, and seeds per iteration.

The plan has the mean number of seeds per iteration that a sampler takes from each graph partition,
as fractions. This module rounds them and assigns each seed of a split exactly once. The result
depends only on the plan, the ids and their clusters, so every process computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.sampler_worker.schedule import epoch_order

# Meets the margins to one seed in a million; the remainder is assigned one by one.
_NUM_FITS = 50

_NOMINAL_SHARE = 0.6
"""Share of the first size in a profiling run: other figures are measured at this size alone."""

_LEAST_OF_A_SIZE = 3
"""Iterations of each size in a profiling run; with fewer, all have the first size."""


@dataclass(frozen=True)
class GlobalBatches:
    """One epoch of a split for all trainers, which all have the same number of batches.

    Otherwise a trainer would block on gradients of the others. Unless `sizes` are given, all
    batches but the last two of each sampler are complete, and these two split the remainder evenly.
    Both are larger only if a trainer has fewer seeds than iterations.

    The seeds of one sampler of the plan are a seed shard. A run resumed on other machines keeps the
    seed shards of its first plan, and so its batches.

    Attributes:
        seeds_per_iteration: Seeds per iteration of every seed shard, grouped by trainer.
        counts: Seeds per epoch of every seed shard.
        samplers_per_trainer: Samplers of each trainer in the first plan.
        drop_last: Whether incomplete batches are dropped.
        shards: Seed shards of each trainer now, in order; empty if as in the first plan.
        sizes: Sizes of the batches of a profiling run, as factors of `seeds_per_iteration`: 1,
            then others; incomplete batches are dropped. Empty if all batches are equally large.
        span: Iterations of the profiling run.
    """

    seeds_per_iteration: tuple[int, ...]
    counts: tuple[int, ...]
    samplers_per_trainer: int = 1
    drop_last: bool = False
    shards: tuple[int, ...] = ()
    sizes: tuple[float, ...] = ()
    span: int = 0

    def __post_init__(self) -> None:
        if self.shards and (
            sum(self.shards) != len(self.seeds_per_iteration) or min(self.shards) < 1
        ):
            raise SpecError(
                f"{len(self.seeds_per_iteration)} seed shards are divided among trainers as "
                f"{list(self.shards)}",
                "assign every seed shard to one trainer, and at least one to every trainer",
            )
        if (
            len(self.seeds_per_iteration) != len(self.counts)
            or len(self.seeds_per_iteration) % self.samplers_per_trainer
        ):
            raise SpecError(
                f"there are {len(self.seeds_per_iteration)} seed shards, {len(self.counts)} seed "
                f"counts and {self.samplers_per_trainer} samplers per trainer",
                "pass one shard and one count for each sampler of each trainer",
            )

    @property
    def num_trainers(self) -> int:
        """Number of trainers."""
        return len(self._num_shards)

    @property
    def num_iterations(self) -> int:
        """Batches of every trainer; 0 if a trainer has no seeds."""
        if self._varied is not None:
            return len(self._varied)
        if self.drop_last:
            pairs = zip(self.counts, self.seeds_per_iteration, strict=True)
            return min(count // num_seeds for count, num_seeds in pairs)
        needed = -(-sum(self.counts) // sum(self.seeds_per_iteration))
        # Trainers of the first plan: a resumed run keeps the number of iterations.
        by_trainer = np.reshape(self.counts, (-1, self.samplers_per_trainer))
        return min(needed, *by_trainer.sum(1).tolist()) if needed else 0

    @cached_property
    def _varied(self) -> np.ndarray | None:
        """Seeds by iteration and shard in a profiling run; None if all batches are equal."""
        whole = np.array(self.seeds_per_iteration, np.int64)
        length = min(self.span, sum(self.counts) // int(whole.sum()))
        num_each = int(length * (1 - _NOMINAL_SHARE)) // max(len(self.sizes) - 1, 1)
        if len(self.sizes) < 2 or num_each < _LEAST_OF_A_SIZE:
            return None
        others = np.repeat(self.sizes[1:], num_each)
        factors = np.concatenate([np.full(length - len(others), self.sizes[0]), others])
        least = max(1, int(min(self.sizes) * whole.sum()) // 2)
        factors = np.resize(factors, sum(self.counts) // least)
        seeds = np.maximum(np.rint(factors[:, None] * whole), 1).astype(np.int64)
        used = np.cumsum(seeds, axis=0) <= np.array(self.counts, np.int64)
        varied: np.ndarray = seeds[: int(used.all(axis=1).sum())]
        return varied

    @property
    def _num_shards(self) -> tuple[int, ...]:
        num = self.samplers_per_trainer
        return self.shards or (num,) * (len(self.seeds_per_iteration) // num)

    def shards_of(self, trainer: int) -> slice:
        """Slice of a trainer's seed shards."""
        first = sum(self._num_shards[:trainer])
        return slice(first, first + self._num_shards[trainer])

    def batch_size(self, trainer: int) -> int:
        """Seeds of a trainer in a complete batch."""
        return sum(self.seeds_per_iteration[self.shards_of(trainer)])

    def ends(self, shard: int) -> tuple[int, ...]:
        """Seeds of a seed shard in its last batches; empty if all are complete."""
        if self._varied is not None:
            return tuple(self._varied[:, shard].tolist())
        if self.drop_last or not self.num_iterations:
            return ()
        num_ends = min(self.num_iterations, 2)
        num_whole = self.num_iterations - num_ends
        left = max(self.counts[shard] - num_whole * self.seeds_per_iteration[shard], 0)
        if num_ends == 1:
            return (left,)
        # The odd seed alternates between the two, so that no trainer has an empty batch.
        first = (left + (shard + 1) % 2) // 2
        return first, left - first

    def num_seeds(self) -> np.ndarray:
        """Seeds by iteration and trainer."""
        sizes = np.empty((self.num_iterations, len(self.seeds_per_iteration)), np.int64)
        pairs = zip(self.counts, self.seeds_per_iteration, strict=True)
        for shard, (count, num_seeds) in enumerate(pairs):
            ends = self.ends(shard)
            num_whole = len(sizes) - len(ends)
            sizes[:num_whole, shard] = np.clip(
                count - num_seeds * np.arange(num_whole), 0, num_seeds
            )
            sizes[num_whole:, shard] = ends
        firsts = [self.shards_of(trainer).start for trainer in range(self.num_trainers)]
        per_trainer: np.ndarray = np.add.reduceat(sizes, firsts, axis=1)
        return per_trainer

    def merged(self) -> GlobalBatches:
        """The same with one seed shard per trainer."""
        own = [self.shards_of(trainer) for trainer in range(self.num_trainers)]
        seeds_per_iteration = tuple(sum(self.seeds_per_iteration[shards]) for shards in own)
        counts = tuple(sum(self.counts[shards]) for shards in own)
        return GlobalBatches(
            seeds_per_iteration, counts, 1, self.drop_last, sizes=self.sizes, span=self.span
        )


def divide_shards(seeds_per_iteration: Sequence[int], num_samplers: int) -> tuple[int, ...]:
    """Number of consecutive seed shards of each sampler, for a changed number of samplers.

    Every sampler has at least one, and samplers have about equally many seeds.
    """
    if num_samplers > len(seeds_per_iteration):
        raise SpecError(
            f"a run started with {len(seeds_per_iteration)} samplers cannot resume with "
            f"{num_samplers}",
            "plan with at most as many trainers and samplers as at the start",
        )
    if num_samplers == len(seeds_per_iteration):
        return (1,) * num_samplers
    before = np.cumsum([0, *seeds_per_iteration])
    ends = [0]
    for sampler in range(1, num_samplers):
        # The nearest sum that leaves one seed shard for each sampler before and after.
        wanted = before[-1] * sampler / num_samplers
        nearest = int(np.argmin(np.abs(before - wanted)))
        ends.append(
            min(max(nearest, ends[-1] + 1), len(seeds_per_iteration) - num_samplers + sampler)
        )
    return tuple(np.diff([*ends, len(seeds_per_iteration)]).tolist())


def whole_seed_counts(mix: np.ndarray, samplers_per_trainer: int = 1) -> tuple[int, ...]:
    """Integer seeds per iteration of every sampler, at least 1, with the rounded sum of the mix.

    Trainers are rounded before their samplers, so that trainers with equal seeds in the plan have
    equal seeds here if the sum allows it.

    Args:
        mix: Seeds per iteration, shape (num_samplers, num_parts).
        samplers_per_trainer: Rows of one trainer.
    """
    rows = np.asarray(mix, np.float64).sum(1)
    total = round(float(rows.sum()))
    if total < len(rows):
        raise SpecError(
            f"an iteration has {total} seeds for {len(rows)} samplers",
            "plan with larger batches or fewer samplers",
        )
    trainers = rows.reshape(-1, samplers_per_trainer)
    sizes = _round(trainers.sum(1), total, samplers_per_trainer)
    whole = [_round(own, int(size), 1) for own, size in zip(trainers, sizes, strict=True)]
    return tuple(int(num_seeds) for own in whole for num_seeds in own)


def assign_seeds(
    parts: Sequence[np.ndarray],
    mix: np.ndarray,
    seeds_per_iteration: Sequence[int],
    seed: int = 0,
    clusters: Sequence[np.ndarray] | None = None,
) -> list[np.ndarray]:
    """Assign every seed of a split to one sampler; returns original ids per sampler, ascending.

    A sampler's number of seeds is proportional to its seeds per iteration, as exactly as whole
    iterations allow; its seeds come from graph partitions in the proportions of the plan. With
    clusters, a sampler gets consecutive clusters of a partition instead of a random sample: its
    seeds have more neighbours in common.

    Args:
        parts: Original ids of the split's seeds in each graph partition.
        mix: Seeds per iteration, shape (num_samplers, num_parts).
        seeds_per_iteration: Result of `whole_seed_counts`.
        seed: Random seed of the choice within a partition.
        clusters: Second-level cluster of every seed in `parts`.
    """
    sizes = np.array([len(ids) for ids in parts], np.int64)
    rows = _counts(int(sizes.sum()), np.asarray(seeds_per_iteration, np.int64))
    amounts = _amounts(np.asarray(mix, np.float64), rows, sizes)
    assignment: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in rows]
    for part, ids in enumerate(parts):
        # Shuffled, so that every sampler gets a random sample of the partition or cluster.
        order = np.argsort(ids, kind="stable")[epoch_order(len(ids), seed, part)]
        if clusters is not None:
            order = order[np.argsort(clusters[part][order], kind="stable")]
        mixed = np.asarray(ids, np.int64)[order]
        ends = np.cumsum(amounts[:, part])
        for sampler in np.flatnonzero(amounts[:, part]):
            end = ends[sampler]
            assignment[sampler].append(mixed[end - amounts[sampler, part] : end])
    return [np.sort(np.concatenate(own)) for own in assignment]


def _counts(total: int, sizes: np.ndarray) -> np.ndarray:
    """Seeds per sampler: whole iterations plus a remainder split in proportion."""
    num_whole, left = divmod(total, int(sizes.sum()))
    counts: np.ndarray = num_whole * sizes + _round(sizes * (left / sizes.sum()), left, 0)
    return counts


def _amounts(mix: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Integers with exactly these row and column sums, in proportions close to the mix."""
    fitted = mix * (columns / np.maximum(mix.sum(0), 1e-300))
    for _ in range(_NUM_FITS):
        fitted *= (rows / np.maximum(fitted.sum(1), 1e-300))[:, None]
        fitted *= columns / np.maximum(fitted.sum(0), 1e-300)
    # Columns are exact, rows may still be too large; neither may be too large below.
    fitted *= np.minimum(rows / np.maximum(fitted.sum(1), 1e-300), 1.0)[:, None]
    # The tolerance keeps integers that a rounding error reduced.
    amounts: np.ndarray = np.floor(fitted + 1e-9).astype(np.int64)
    missing = rows - amounts.sum(1)
    for part in range(len(columns)):
        # Samplers with the largest proportion of this partition first.
        order = np.argsort(-mix[:, part], kind="stable")
        before = np.cumsum(missing[order]) - missing[order]
        room = columns[part] - amounts[:, part].sum()
        taken = np.clip(room - before, 0, missing[order])
        amounts[order, part] += taken
        missing[order] -= taken
    return amounts


def _round(values: np.ndarray, total: int, least: int) -> np.ndarray:
    """Largest remainder method: integers of at least `least` with a given sum."""
    whole: np.ndarray = np.maximum(np.floor(values + 1e-9).astype(np.int64), least)
    left = total - int(whole.sum())
    remainders = values - whole
    while left:
        # If `least` made the sum too large, reduce those with the smallest remainders.
        step = 1 if left > 0 else -1
        can = np.ones(len(whole), bool) if left > 0 else whole > least
        order = np.argsort(np.where(can, -step * remainders, np.inf), kind="stable")
        order = order[: min(abs(left), int(can.sum()))]
        whole[order] += step
        remainders[order] -= step
        left -= step * len(order)
    return whole
