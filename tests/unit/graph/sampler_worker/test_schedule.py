from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.sampler_worker.schedule import (
    batches_per_epoch,
    epoch_order,
    interleave,
    sampler_batch_size,
    schedule,
)


def test_shares_of_a_batch_are_even_and_add_up() -> None:
    for size, num in ((1024, 4), (10, 3), (5, 5)):
        sizes = [sampler_batch_size(size, num, s) for s in range(num)]
        assert sum(sizes) == size
        assert max(sizes) - min(sizes) <= 1
    with pytest.raises(SpecError, match="2 seeds cannot be split among 3 samplers"):
        sampler_batch_size(2, 3, 0)


@pytest.mark.parametrize(
    ("counts", "size", "keep", "drop"),
    [([10], 4, 3, 2), ([12], 4, 3, 3), ([5, 5], 4, 3, 2), ([5, 4], 4, 3, 2), ([9, 8], 4, 5, 4)],
)
def test_an_epoch_takes_all_seeds_or_whole_batches(
    counts: list[int], size: int, keep: int, drop: int
) -> None:
    assert batches_per_epoch(counts, size) == keep
    assert batches_per_epoch(counts, size, drop_last=True) == drop


def test_too_few_seeds_make_no_batch() -> None:
    with pytest.raises(SpecError, match="3 seeds make no batch of 4"):
        batches_per_epoch([3], 4, drop_last=True)


def test_orders_are_permutations_that_differ_by_epoch_and_seed() -> None:
    task_configs = [epoch_order(500, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    for order in task_configs:
        assert np.array_equal(np.sort(order), np.arange(500))
    assert len({order.tobytes() for order in task_configs}) == 4
    assert np.array_equal(epoch_order(500, 0, 0), task_configs[0])


def test_first_seeds_of_many_epochs_are_uniform() -> None:
    firsts = [epoch_order(8, 0, epoch)[0] for epoch in range(1600)]
    expected = 200
    counts = np.bincount(firsts, minlength=8)
    assert ((counts - expected) ** 2 / expected).sum() < 24.3  # chi-square, 7 degrees, p = 0.001


def test_a_schedule_goes_on_from_epoch_to_epoch() -> None:
    seeds = np.array([9, 1, 5, 3, 7])
    jobs = list(islice(schedule(seeds, 2, 3, 0), 7))
    assert [(job.epoch, job.batch) for job in jobs] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0),
    ]  # fmt: skip
    for epoch in (0, 1):
        taken = np.concatenate([job.seeds for job in jobs if job.epoch == epoch])
        assert sorted(taken.tolist()) == [1, 3, 5, 7, 9]
    again = list(schedule(seeds[::-1], 2, 3, 0, num_epochs=2))
    assert [job.seeds.tolist() for job in again] == [job.seeds.tolist() for job in jobs[:6]]


def test_without_shuffling_seeds_are_in_order() -> None:
    jobs = list(schedule(np.array([4, 2, 8]), 2, 3, 0, shuffle=False, num_epochs=1))
    assert [job.seeds.tolist() for job in jobs] == [[2, 4], [8], []]


def test_the_last_batches_may_have_sizes_of_their_own() -> None:
    jobs = list(schedule(np.arange(10), 4, 3, 0, shuffle=False, num_epochs=1, ends=(3, 3)))
    assert [job.seeds.tolist() for job in jobs] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_a_schedule_that_begins_later_gives_what_is_left_of_the_whole() -> None:
    whole = list(schedule(np.arange(20), 3, 7, 5, num_epochs=3, ends=(1, 1)))
    for first in range(len(whole)):
        epoch, batch = divmod(first, 7)
        left = schedule(
            np.arange(20),
            3,
            7,
            5,
            first_epoch=epoch,
            first_batch=batch,
            num_epochs=3 - epoch,
            ends=(1, 1),
        )
        for job, expected in zip(left, whole[first:], strict=True):
            assert (job.epoch, job.batch) == (expected.epoch, expected.batch)
            assert job.seeds.tolist() == expected.seeds.tolist()


def test_lanes_take_turns_in_every_batch() -> None:
    shards = [
        schedule(np.arange(first, first + 6), 2, 3, 0, shuffle=False, num_epochs=1)
        for first in (0, 10)
    ]
    jobs = [(job.batch, job.seeds.tolist()) for job in interleave(shards)]
    assert jobs == [
        (0, [0, 1]), (0, [10, 11]), (1, [2, 3]), (1, [12, 13]), (2, [4, 5]), (2, [14, 15]),
    ]  # fmt: skip
