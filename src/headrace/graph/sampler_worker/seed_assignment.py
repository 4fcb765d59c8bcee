"""Which seeds every sampler of a job takes, and how many in each iteration.

The plan says how many seeds per iteration a sampler takes from each part, on average and in
fractions. Here that becomes whole numbers, and seeds of a split are dealt accordingly, each exactly
once. All of it is a function of the plan and of the ids, so every process comes to the same answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.sampler_worker.schedule import epoch_order

# Enough for margins to be met to a seed in a million; what is left is dealt one by one.
_NUM_FITS = 50


@dataclass(frozen=True)
class GlobalBatches:
    """One epoch of a split, as all trainers take it: all of them have the same number of batches.

    Whoever steps alone would wait for others' gradients for ever, or leave them behind. So the end
    of an epoch is cut evenly: all batches but two are whole, and the last two of each sampler share
    what is left. Only that a trainer has fewer seeds than iterations makes both larger.

    What a sampler of the plan takes is a lane. A run that goes on with other machines keeps the
    lanes of the plan that it began with, and so its batches, whoever has which.

    Attributes:
        shares: Seeds per iteration of every lane, those of a trainer side by side.
        counts: Seeds per epoch of every lane.
        samplers_per_trainer: How many are side by side, where the run began.
        drop_last: Whether all batches are whole, and what is left is left out.
        lanes: How many each trainer has now, in order; none if it is as where the run began.
    """

    shares: tuple[int, ...]
    counts: tuple[int, ...]
    samplers_per_trainer: int = 1
    drop_last: bool = False
    lanes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.lanes and (sum(self.lanes) != len(self.shares) or min(self.lanes) < 1):
            raise SpecError(
                f"{len(self.shares)} lanes are divided among trainers as {list(self.lanes)}",
                "give every lane to one trainer, and every trainer at least one",
            )
        if len(self.shares) != len(self.counts) or len(self.shares) % self.samplers_per_trainer:
            raise SpecError(
                f"there are {len(self.shares)} shares, {len(self.counts)} numbers of seeds and "
                f"{self.samplers_per_trainer} samplers per trainer",
                "give one share and one number for each sampler of each trainer",
            )

    @property
    def num_trainers(self) -> int:
        """How many trainers take batches."""
        return len(self._num_lanes)

    @property
    def num_iterations(self) -> int:
        """Batches of every trainer; 0 if one of them has no seeds."""
        if self.drop_last:
            return min(n // share for n, share in zip(self.counts, self.shares, strict=True))
        needed = -(-sum(self.counts) // sum(self.shares))
        # Of trainers where the run began: there are as many iterations however it goes on.
        side_by_side = np.reshape(self.counts, (-1, self.samplers_per_trainer))
        return min(needed, *side_by_side.sum(1).tolist()) if needed else 0

    @property
    def _num_lanes(self) -> tuple[int, ...]:
        num = self.samplers_per_trainer
        return self.lanes or (num,) * (len(self.shares) // num)

    def lanes_of(self, trainer: int) -> slice:
        """Where a trainer's lanes are among all."""
        first = sum(self._num_lanes[:trainer])
        return slice(first, first + self._num_lanes[trainer])

    def batch_size(self, trainer: int) -> int:
        """Seeds of a trainer in a whole batch."""
        return sum(self.shares[self.lanes_of(trainer)])

    def ends(self, lane: int) -> tuple[int, ...]:
        """Seeds of a lane in its last batches; none if all are whole."""
        if self.drop_last or not self.num_iterations:
            return ()
        num_ends = min(self.num_iterations, 2)
        num_whole = self.num_iterations - num_ends
        left = max(self.counts[lane] - num_whole * self.shares[lane], 0)
        if num_ends == 1:
            return (left,)
        # Odd ones go to one end or the other, so that no trainer has only empty lanes at one.
        first = (left + (lane + 1) % 2) // 2
        return first, left - first

    def num_seeds(self) -> np.ndarray:
        """Seeds by iteration and trainer."""
        sizes = np.empty((self.num_iterations, len(self.shares)), np.int64)
        for lane, (share, count) in enumerate(zip(self.shares, self.counts, strict=True)):
            ends = self.ends(lane)
            num_whole = len(sizes) - len(ends)
            sizes[:num_whole, lane] = np.clip(count - share * np.arange(num_whole), 0, share)
            sizes[num_whole:, lane] = ends
        firsts = [self.lanes_of(trainer).start for trainer in range(self.num_trainers)]
        per_trainer: np.ndarray = np.add.reduceat(sizes, firsts, axis=1)
        return per_trainer

    def num_seeds_of(self, iteration: int) -> tuple[int, ...]:
        """Seeds of every trainer in an iteration of an epoch."""
        return tuple(int(num) for num in self.num_seeds()[iteration])

    def merged(self) -> GlobalBatches:
        """The same if every trainer made its batches itself."""
        own = [self.lanes_of(trainer) for trainer in range(self.num_trainers)]
        shares = tuple(sum(self.shares[lanes]) for lanes in own)
        counts = tuple(sum(self.counts[lanes]) for lanes in own)
        return GlobalBatches(shares, counts, 1, self.drop_last)


def divide_lanes(shares: Sequence[int], num_samplers: int) -> tuple[int, ...]:
    """How many lanes, side by side, each of some other number of samplers takes.

    Args:
        shares: Seeds per iteration of every lane.
        num_samplers: How many there are now.

    Returns:
        Numbers from 1 on, such that all samplers have about as many seeds.

    Raises:
        SpecError: There are more samplers than lanes.
    """
    if num_samplers > len(shares):
        raise SpecError(
            f"a run that began with {len(shares)} samplers is to go on with {num_samplers}",
            "plan with at most as many trainers and samplers as it began with",
        )
    if num_samplers == len(shares):
        return (1,) * num_samplers
    before = np.cumsum([0, *shares])
    ends = [0]
    for sampler in range(1, num_samplers):
        # Where the sum is nearest, but for a lane each before and after.
        wanted = before[-1] * sampler / num_samplers
        nearest = int(np.argmin(np.abs(before - wanted)))
        ends.append(min(max(nearest, ends[-1] + 1), len(shares) - num_samplers + sampler))
    return tuple(np.diff([*ends, len(shares)]).tolist())


def whole_seed_counts(mix: np.ndarray, samplers_per_trainer: int = 1) -> tuple[int, ...]:
    """Seeds per iteration of every sampler, in whole numbers.

    Trainers are rounded before their samplers, so that trainers that take the same in the plan take
    the same here, if their sum allows it.

    Args:
        mix: Seeds per iteration, shape (num_samplers, num_parts).
        samplers_per_trainer: How many rows belong to one trainer.

    Returns:
        Numbers from 1 on, whose sum is that of the mix, rounded.

    Raises:
        SpecError: A batch has fewer seeds than there are samplers.
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
    return tuple(int(share) for own in whole for share in own)


def assign_seeds(
    parts: Sequence[np.ndarray],
    mix: np.ndarray,
    shares: Sequence[int],
    seed: int = 0,
) -> list[np.ndarray]:
    """Give every seed of a split to one sampler.

    A sampler's number of seeds is in proportion to its share, as exactly as whole iterations allow;
    within that, seeds come from parts as the plan mixes them.

    Args:
        parts: Original ids of the split's seeds in each part.
        mix: Seeds per iteration, shape (num_samplers, num_parts).
        shares: Of `whole_seed_counts`.
        seed: Of the choice among the seeds of a part.

    Returns:
        Original ids per sampler, ascending.
    """
    sizes = np.array([len(ids) for ids in parts], np.int64)
    rows = _counts(int(sizes.sum()), np.asarray(shares, np.int64))
    amounts = _amounts(np.asarray(mix, np.float64), rows, sizes)
    assignment: list[list[np.ndarray]] = [[np.empty(0, np.int64)] for _ in rows]
    for part, ids in enumerate(parts):
        # Whatever order ids have in a part, every sampler gets a fair choice of them.
        mixed = np.sort(np.asarray(ids, np.int64))[epoch_order(len(ids), seed, part)]
        ends = np.cumsum(amounts[:, part])
        for sampler in np.flatnonzero(amounts[:, part]):
            end = ends[sampler]
            assignment[sampler].append(mixed[end - amounts[sampler, part] : end])
    return [np.sort(np.concatenate(own)) for own in assignment]


def _counts(total: int, shares: np.ndarray) -> np.ndarray:
    """Seeds per sampler: whole iterations, and what is left by shares, never more than one each."""
    num_whole, left = divmod(total, int(shares.sum()))
    counts: np.ndarray = num_whole * shares + _round(shares * (left / shares.sum()), left, 0)
    return counts


def _amounts(mix: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Whole numbers with exactly these sums, in proportions as near to the mix as these allow."""
    fitted = mix * (columns / np.maximum(mix.sum(0), 1e-300))
    for _ in range(_NUM_FITS):
        fitted *= (rows / np.maximum(fitted.sum(1), 1e-300))[:, None]
        fitted *= columns / np.maximum(fitted.sum(0), 1e-300)
    # Rows may still be too large, as columns are met exactly; nothing may be too large below.
    fitted *= np.minimum(rows / np.maximum(fitted.sum(1), 1e-300), 1.0)[:, None]
    # Whole numbers that fractions miss by a rounding error stay; no sum grows by a whole one.
    amounts: np.ndarray = np.floor(fitted + 1e-9).astype(np.int64)
    missing = rows - amounts.sum(1)
    for part in range(len(columns)):
        # Samplers that want most of this part first; the last part fills whatever is left.
        order = np.argsort(-mix[:, part], kind="stable")
        before = np.cumsum(missing[order]) - missing[order]
        room = columns[part] - amounts[:, part].sum()
        taken = np.clip(room - before, 0, missing[order])
        amounts[order, part] += taken
        missing[order] -= taken
    return amounts


def _round(values: np.ndarray, total: int, least: int) -> np.ndarray:
    """Largest remainders: whole numbers of at least `least`, with a given sum."""
    whole: np.ndarray = np.maximum(np.floor(values + 1e-9).astype(np.int64), least)
    left = total - int(whole.sum())
    remainders = values - whole
    while left:
        # Where the least was too much, others give: those that lose least by it.
        step = 1 if left > 0 else -1
        can = np.ones(len(whole), bool) if left > 0 else whole > least
        order = np.argsort(np.where(can, -step * remainders, np.inf), kind="stable")
        order = order[: min(abs(left), int(can.sum()))]
        whole[order] += step
        remainders[order] -= step
        left -= step * len(order)
    return whole
