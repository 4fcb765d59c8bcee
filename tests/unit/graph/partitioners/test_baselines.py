"""Hash and range: shares without looking at edges."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.graph.adjacency import Adjacency
from headrace.graph.partitioners._base import Constraint, Question
from headrace.graph.partitioners.baselines import Hash, Range


def question(
    num_nodes: int, shares: list[float], weights: np.ndarray | None = None, seed: int = 0
) -> Question:
    lonely = Adjacency(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.int32))
    return Question(lonely, np.array(shares), (Constraint("nodes", weights),), seed=seed)


def test_hash_respects_shares() -> None:
    parts = Hash().assign(question(100_000, [0.5, 0.3, 0.2]), lambda step: None)
    assert parts.dtype == np.int32
    assert np.bincount(parts) / 100_000 == pytest.approx([0.5, 0.3, 0.2], abs=0.01)


def test_hash_depends_on_the_seed_and_on_ids_alone() -> None:
    first, again, other = (
        Hash().assign(question(1000, [0.5, 0.5], seed=seed), lambda step: None)
        for seed in (1, 1, 2)
    )
    longer = Hash().assign(question(2000, [0.5, 0.5], seed=1), lambda step: None)
    assert np.array_equal(first, again)
    assert np.array_equal(first, longer[:1000])
    assert 400 < np.sum(first != other) < 600


def test_hash_equals_its_twin() -> None:
    parts = Hash().assign(question(50, [0.25] * 4, seed=3), lambda step: None)
    mask = 2**64 - 1
    for node, part in enumerate(parts):
        x = (node * 0x9E3779B97F4A7C15 + 3 * 0xD1B54A32D192ED03) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        assert part == (x ^ (x >> 31)) >> 62


def test_range_gives_shares_in_order() -> None:
    parts = Range().assign(question(10, [0.5, 0.3, 0.2]), lambda step: None)
    assert parts.dtype == np.int32
    assert parts.tolist() == [0] * 5 + [1] * 3 + [2] * 2


def test_range_goes_by_weight() -> None:
    weights = np.array([6, 1, 1, 1, 1, 1, 1], np.int32)
    parts = Range().assign(question(7, [0.5, 0.5], weights), lambda step: None)
    assert parts.tolist() == [0] + [1] * 6


@pytest.mark.parametrize("method", [Hash(), Range()])
def test_one_part_gets_all(method: Hash | Range) -> None:
    assert method.assign(question(9, [1.0]), lambda step: None).tolist() == [0] * 9
    assert len(method.assign(question(0, [0.5, 0.5]), lambda step: None)) == 0
