from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headrace.graph.kernels.communication import count_neighbours, count_remote, move, visit
from headrace.graph.partitioners.g3_communication import balance_communication
from headrace.graph.partitioners.rebalance import load_parts, repair, stack_weights
from tests.unit.graph.cut_graphs import community_graph, cut_of, loads_of, question_of, remote_of


@pytest.mark.slow
@pytest.mark.parametrize("num_parts", [4, pytest.param(8, marks=pytest.mark.campaign)])
def test_balances_within_all_limits(num_parts: int) -> None:
    adjacency, train = community_graph(3000, 15_000, community_size=100)
    question = question_of(adjacency, train, num_parts)
    start = np.random.default_rng(0).random(3000) ** 1.5 * num_parts
    parts = repair(question, start.astype(np.int32))
    before = remote_of(adjacency, parts, num_parts)

    balanced = balance_communication(question, parts)

    remote = remote_of(adjacency, balanced, num_parts)
    assert remote.max() <= 1.03 * remote.mean()
    assert remote.sum() <= 1.02 * before.sum()
    assert cut_of(adjacency, balanced) <= 1.03 * cut_of(adjacency, parts)
    assert (loads_of(question, balanced) <= question.caps()).all()


def test_keeps_unequal_shares() -> None:
    adjacency, train = community_graph(2000, 10_000, community_size=100)
    question = question_of(adjacency, train, [0.5, 0.3, 0.2])
    parts = repair(question, np.zeros(2000, np.int32))

    balanced = balance_communication(question, parts)

    assert (loads_of(question, balanced) <= question.caps()).all()
    before, after = (
        (remote_of(adjacency, p, 3) / question.shares).max() / remote_of(adjacency, p, 3).sum()
        for p in (parts, balanced)
    )
    assert after <= before


def test_does_not_change_its_input_and_repeats_itself() -> None:
    adjacency, train = community_graph(500, 2000, community_size=50)
    question = question_of(adjacency, train, 4)
    parts = (np.arange(500) % 4).astype(np.int32)

    first, again = (balance_communication(question, parts) for _ in range(2))

    assert (parts == np.arange(500) % 4).all()
    assert (first == again).all()


def test_nothing_to_do_without_edges_or_with_one_part() -> None:
    adjacency, _ = community_graph(50, 100, community_size=10)
    parts = np.zeros(50, np.int32)

    assert not balance_communication(question_of(adjacency, None, 1), parts).any()


def test_moves_keep_count_of_remote_neighbours() -> None:
    adjacency, train = community_graph(300, 1500, community_size=30)
    question = question_of(adjacency, train, 5)
    graph = (adjacency.indptr, adjacency.indices)
    rng = np.random.default_rng(3)
    parts = rng.integers(5, size=300).astype(np.int32)
    weights = stack_weights(question)
    loads = load_parts(weights, parts, 5)
    table = count_neighbours(*graph, parts, 5)
    remote = count_remote(parts, 5, *table[:3])
    known, strength = np.zeros(5, np.int64), np.zeros(5, np.int64)

    for node, target in zip(rng.integers(300, size=400), rng.integers(5, size=400), strict=True):
        source, degree = parts[node], np.diff(adjacency.indptr)[node]
        if source == target:
            continue
        looked: tuple[Any, ...] = (node, *graph, None, parts, *table, known, strength)
        freed = visit(*looked)
        expected = remote.copy()
        expected[source] += (strength[source] > 0) - freed
        expected[target] += degree - known[target] - (strength[target] > 0)

        moved: tuple[Any, ...] = (
            node,
            target,
            *graph,
            None,
            weights,
            parts,
            loads,
            *table,
            remote,
        )
        before = cut_of(adjacency, parts) // 2
        growth = move(*moved)

        assert cut_of(adjacency, parts) // 2 == before + growth

        assert (remote == expected).all()
        assert (remote == remote_of(adjacency, parts, 5)).all()
    assert (loads == loads_of(question, parts)).all()
    neighbours = [
        np.unique(parts[adjacency.indices[slice(*graph[0][v : v + 2])]]) for v in range(300)
    ]
    assert table[1].tolist() == [len(near) for near in neighbours]
