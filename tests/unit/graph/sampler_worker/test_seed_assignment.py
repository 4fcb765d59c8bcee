"""Whole seed counts of a global batch, and seeds assigned by them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import SpecError
from headrace.graph.sampler_worker.seed_assignment import (
    GlobalBatches,
    assign_seeds,
    divide_shards,
    whole_seed_counts,
)


def test_equal_trainers_stay_equal_although_their_samplers_cannot() -> None:
    mix = np.full((6, 3), 5 / 2 / 3)
    assert whole_seed_counts(mix, 2) == (3, 2, 3, 2, 3, 2)


def test_every_sampler_has_a_seed() -> None:
    assert whole_seed_counts(np.array([[0.1], [0.1], [9.8]])) == (1, 1, 8)
    with pytest.raises(SpecError, match="2 seeds for 3 samplers"):
        whole_seed_counts(np.array([[0.5], [0.5], [1.0]]))


def test_local_first_stays_local_where_parts_are_even() -> None:
    parts = [np.arange(0, 40), np.arange(40, 80)]
    assignment = assign_seeds(parts, np.diag([8.0, 8.0]), (8, 8))
    np.testing.assert_array_equal(assignment[0], parts[0])
    np.testing.assert_array_equal(assignment[1], parts[1])


def test_samplers_of_a_part_get_ranges_of_its_clusters() -> None:
    ids = np.random.default_rng(0).permutation(80)
    clusters = np.repeat([0, 1, 2, 3], 20)
    mix = np.full((2, 1), 8.0)
    first, second = assign_seeds([ids], mix, (8, 8), clusters=[clusters])
    np.testing.assert_array_equal(first, np.sort(ids[clusters < 2]))
    np.testing.assert_array_equal(second, np.sort(ids[clusters >= 2]))
    # Where a cluster is divided, its seeds are chosen at random.
    first, second = assign_seeds([ids], mix, (8, 8), clusters=[np.zeros(80, int)])
    expected = assign_seeds([ids], mix, (8, 8))
    np.testing.assert_array_equal(first, expected[0])
    np.testing.assert_array_equal(second, expected[1])


def test_what_one_part_has_too_much_goes_to_others() -> None:
    parts = [np.arange(0, 60), np.arange(60, 80)]
    assignment = assign_seeds(parts, np.diag([8.0, 8.0]), (8, 8))
    assert [len(own) for own in assignment] == [40, 40]
    assert set(assignment[0]) <= set(parts[0])
    assert set(parts[1]) <= set(assignment[1])


def test_seeds_of_a_part_are_dealt_as_the_plan_mixes_them() -> None:
    mix = np.array([[30.0, 10.0], [10.0, 30.0]])
    assignment = assign_seeds([np.arange(400), np.arange(400, 800)], mix, (40, 40))
    assert [int((own < 400).sum()) for own in assignment] == [300, 100]


def test_trainers_end_together_with_what_is_left() -> None:
    batches = GlobalBatches((2, 1, 3, 3), (5, 2, 9, 6), samplers_per_trainer=2)
    assert [batches.batch_size(t) for t in range(2)] == [3, 6]
    assert [batches.ends(s) for s in range(4)] == [(2, 1), (0, 1), (3, 3), (1, 2)]
    assert batches.num_seeds().tolist() == [[3, 6], [2, 4], [2, 5]]
    assert batches.merged().num_seeds().tolist() == [[3, 6], [2, 4], [2, 5]]
    whole = GlobalBatches((2, 1, 3, 3), (5, 2, 9, 6), 2, drop_last=True)
    assert whole.num_seeds().tolist() == [[3, 6], [3, 6]]


def test_a_profiling_run_has_batches_of_several_sizes() -> None:
    batches = GlobalBatches((8, 4), (480, 240), sizes=(1.0, 0.5, 2.0), span=30)
    seeds = batches.num_seeds()
    assert seeds[:30].tolist() == [[8, 4]] * 18 + [[4, 2]] * 6 + [[16, 8]] * 6
    assert seeds[30:48].tolist() == [[8, 4]] * 18
    assert seeds[48:].tolist() == [[4, 2]] * 6 + [[16, 8]] * 3
    assert (seeds.sum(0) <= (480, 240)).all()
    assert batches.num_iterations == len(seeds) == len(batches.ends(0)) == len(batches.ends(1))
    assert batches.batch_size(0) == 8


def test_a_short_epoch_has_one_size_even_in_a_profiling_run() -> None:
    batches = GlobalBatches((8, 4), (80, 40), sizes=(1.0, 0.5, 2.0), span=30)
    assert batches.num_seeds().tolist() == GlobalBatches((8, 4), (80, 40)).num_seeds().tolist()


def test_a_trainer_without_seeds_makes_no_batches() -> None:
    assert GlobalBatches((4, 4), (0, 1)).num_iterations == 0
    assert GlobalBatches((4, 4), (0, 0)).num_seeds().shape == (0, 2)


@pytest.mark.parametrize("shards", [(4, 2), (1, 4, 1), (6,), (3, 3)])
def test_batches_stay_what_they_are_whoever_has_the_shards(shards: tuple[int, ...]) -> None:
    sizes, counts = (2, 1, 3, 3, 2, 2), (5, 2, 9, 6, 5, 1)
    began = GlobalBatches(sizes, counts, samplers_per_trainer=2)
    later = GlobalBatches(sizes, counts, 2, shards=shards)
    assert later.num_trainers == len(shards)
    assert later.num_iterations == began.num_iterations
    assert [later.ends(shard) for shard in range(6)] == [began.ends(shard) for shard in range(6)]
    assert later.num_seeds().sum(1).tolist() == began.num_seeds().sum(1).tolist()
    assert sum(later.batch_size(t) for t in range(len(shards))) == sum(sizes)
    taken = [shard for t in range(len(shards)) for shard in range(6)[later.shards_of(t)]]
    assert taken == list(range(6))
    with pytest.raises(SpecError, match="6 seed shards are divided"):
        GlobalBatches(sizes, counts, 2, shards=(*shards, 1))


@given(
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    num_samplers=st.integers(1, 12),
)
def test_shards_are_divided_evenly_and_completely(sizes: list[int], num_samplers: int) -> None:
    if num_samplers > len(sizes):
        with pytest.raises(SpecError, match="cannot resume with"):
            divide_shards(sizes, num_samplers)
        return
    shards = divide_shards(sizes, num_samplers)
    assert len(shards) == num_samplers
    assert sum(shards) == len(sizes)
    assert min(shards) >= 1
    ends = np.cumsum([0, *shards])
    seeds = [sum(sizes[a:b]) for a, b in pairwise(ends.tolist())]
    if len(set(sizes)) == 1 and len(sizes) % num_samplers == 0:
        assert len(set(seeds)) == 1


def test_shares_and_counts_belong_together() -> None:
    with pytest.raises(SpecError, match="2 seed shards"):
        GlobalBatches((1, 1), (3,))


@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    num_trainers=st.integers(1, 4),
    samplers_per_trainer=st.integers(1, 3),
    data=st.data(),
)
def test_every_seed_once_and_epochs_end_together(
    counts: list[int], num_trainers: int, samplers_per_trainer: int, data: st.DataObject
) -> None:
    num_samplers = num_trainers * samplers_per_trainer
    cell = st.one_of(st.just(0.0), st.floats(0.01, 20))
    row = st.lists(cell, min_size=len(counts), max_size=len(counts)).filter(lambda r: sum(r) >= 1)
    mix = np.array(data.draw(st.lists(row, min_size=num_samplers, max_size=num_samplers)))
    starts = np.cumsum([0, *counts])
    parts = [np.arange(starts[p], starts[p + 1]) for p in range(len(counts))]

    sizes = whole_seed_counts(mix, samplers_per_trainer)
    assert sum(sizes) == round(float(mix.sum()))
    assert min(sizes) >= 1
    assignment = assign_seeds(parts, mix, sizes)
    np.testing.assert_array_equal(np.sort(np.concatenate(assignment)), np.arange(starts[-1]))
    for own, again in zip(assignment, assign_seeds(parts, mix, sizes), strict=True):
        np.testing.assert_array_equal(own, again)

    own_counts = tuple(len(own) for own in assignment)
    batches = GlobalBatches(sizes, own_counts, samplers_per_trainer)
    for each in (batches, batches.merged()):
        num_seeds = each.num_seeds()
        assert (num_seeds >= 1).all()
        if min(batches.merged().counts) == 0:
            assert len(num_seeds) == 0
        else:
            assert num_seeds.sum() == starts[-1]
            assert len(num_seeds) <= -(-int(starts[-1]) // sum(sizes))
            assert (num_seeds[:-2] == batches.merged().seeds_per_iteration).all()
    if sum(sizes) <= starts[-1] and min(batches.merged().seeds_per_iteration) > 1:
        assert batches.num_iterations == -(-int(starts[-1]) // sum(sizes))
        assert (batches.num_seeds() <= batches.merged().seeds_per_iteration).all()
