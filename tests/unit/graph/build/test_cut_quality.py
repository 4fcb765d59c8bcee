from __future__ import annotations

import numpy as np
import pytest

from headrace.graph.adjacency import Adjacency
from headrace.graph.build.cut_quality import measure
from headrace.graph.partitioners._base import Constraint, Question
from tests.unit.graph.cut_graphs import (
    adjacency_of,
    community_graph,
    cut_of,
    question_of,
    remote_of,
)


def test_path_by_hand() -> None:
    # 0 - 1 - 2 | 3 - 4, and 5 alone.
    path = adjacency_of(np.arange(4), np.arange(1, 5), 6)
    train = np.array([1, 0, 0, 0, 0, 0], np.uint8)
    constraints = (Constraint("nodes"), Constraint("train", train))

    quality = measure(
        Question(path, np.array([0.5, 0.5]), constraints), np.array([0, 0, 0, 1, 1, 1])
    )

    assert quality.edge_cut == 1 / 4
    assert quality.volume == 2
    assert quality.remote == (1, 1)
    assert quality.imbalance == 1
    assert quality.balance == {"nodes": 1.0, "train": 2.0}
    assert quality.remote_by_hop == (0, 0)
    assert quality.remote_fraction == 0


@pytest.mark.parametrize("num_parts", [3, 70])
def test_counts_equal_plain_twins(num_parts: int) -> None:
    adjacency, train = community_graph(800, 4000, community_size=50)
    question = question_of(adjacency, train, num_parts)
    parts = np.random.default_rng(0).integers(num_parts, size=800)

    quality = measure(question, parts)

    remote = remote_of(adjacency, parts, num_parts)
    assert quality.edge_cut == cut_of(adjacency, parts) / adjacency.num_arcs
    assert quality.remote == tuple(remote)
    assert quality.volume == remote.sum()
    assert quality.imbalance == pytest.approx(remote.max() / remote.mean())


def test_cut_is_by_weight() -> None:
    path = adjacency_of(np.arange(2), np.arange(1, 3), 3)
    weighted = Adjacency(path.indptr, path.indices, np.array([3, 3, 1, 1], np.int32))

    assert measure(Question(weighted, np.array([0.5, 0.5])), np.array([0, 1, 1])).edge_cut == 0.75


def test_remote_by_hop_is_what_all_walks_give() -> None:
    adjacency, train = community_graph(300, 1500, community_size=30)
    parts = np.random.default_rng(0).integers(2, size=300)
    quality = measure(question_of(adjacency, train, 2), parts)
    steps = np.zeros((300, 300))
    src = np.repeat(np.arange(300), np.diff(adjacency.indptr))
    steps[src, adjacency.indices] = 1 / np.diff(adjacency.indptr)[src]
    seeds = np.flatnonzero((train > 0) & (np.diff(adjacency.indptr) > 0))
    is_remote = parts[:, None] != parts
    expected = [(power * is_remote)[seeds].sum(axis=1).mean() for power in (steps, steps @ steps)]

    assert quality.remote_by_hop == pytest.approx(expected, abs=0.05)
    assert quality.remote_fraction == pytest.approx(
        (15 * quality.remote_by_hop[0] + 150 * quality.remote_by_hop[1]) / 165
    )


def test_one_part_has_nothing_remote() -> None:
    adjacency, train = community_graph(100, 300, community_size=10)

    quality = measure(question_of(adjacency, train, 1), np.zeros(100, np.int32))

    assert (quality.edge_cut, quality.volume, quality.imbalance) == (0, 0, 1)
