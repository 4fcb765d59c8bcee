from __future__ import annotations

import numpy as np
import pytest

from headrace.graph.adjacency import Adjacency
from headrace.graph.kernels.rebalance import refine
from headrace.graph.partitioners._base import Constraint, Question
from headrace.graph.partitioners.rebalance import load_parts, repair, stack_weights
from tests.unit.graph.cut_graphs import adjacency_of, community_graph, cut_of, loads_of, question_of


@pytest.mark.parametrize("shares", [4, 16, [0.5, 0.3, 0.2]])
def test_brings_any_cut_within_all_caps(shares: int | list[float]) -> None:
    adjacency, train = community_graph(4000, 20_000, community_size=100)
    question = question_of(adjacency, train, shares)
    rng = np.random.default_rng(1)
    parts = (question.num_parts * rng.random(4000) ** 2).astype(np.int32)

    repaired = repair(question, parts)

    assert repaired.dtype == np.int32
    assert (loads_of(question, repaired) <= question.caps()).all()
    assert cut_of(adjacency, repaired) < cut_of(adjacency, parts)


def test_all_in_one_part_is_spread() -> None:
    adjacency, train = community_graph(1000, 5000, community_size=50)
    question = question_of(adjacency, train, 8)

    repaired = repair(question, np.zeros(1000, np.int32))

    assert (loads_of(question, repaired) <= question.caps()).all()


def test_leaves_a_good_cut_alone() -> None:
    src = np.array([0, 0, 1, 3, 3, 4, 2])
    dst = np.array([1, 2, 2, 4, 5, 5, 3])
    parts = np.array([0, 0, 0, 1, 1, 1], np.int32)

    assert (repair(question_of(adjacency_of(src, dst, 6), None, 2), parts) == parts).all()


def test_does_its_best_with_fewer_training_nodes_than_parts() -> None:
    adjacency, _ = community_graph(400, 1200, community_size=40)
    train = np.zeros(400, np.uint8)
    train[:2] = 1
    question = question_of(adjacency, train, 4)

    loads = loads_of(question, repair(question, np.arange(400, dtype=np.int32) % 4))

    assert (loads[:2] <= question.caps()[:2]).all()
    assert loads[2].max() == 1


def test_does_not_change_its_input_and_repeats_itself() -> None:
    adjacency, train = community_graph(500, 2000, community_size=50)
    question = question_of(adjacency, train, 4)
    parts = np.zeros(500, np.int32)

    first, again = repair(question, parts), repair(question, parts)

    assert not parts.any()
    assert (first == again).all()


def plain_refine(question: Question, parts: np.ndarray, caps: np.ndarray) -> np.ndarray:
    parts, weights = parts.copy(), stack_weights(question).astype(float)
    adjacency = question.adjacency
    for node in range(adjacency.num_nodes):
        arcs = slice(adjacency.indptr[node], adjacency.indptr[node + 1])
        arc_weights = None if adjacency.weights is None else adjacency.weights[arcs]
        strength = np.bincount(
            parts[adjacency.indices[arcs]], arc_weights, minlength=question.num_parts
        )
        loads, source = loads_of(question, parts), parts[node]
        options = [
            (-strength[part], part)
            for part in range(question.num_parts)
            if strength[part] > strength[source]
            and all(
                weights[c, node] == 0 or loads[c, part] + weights[c, node] <= caps[c, part]
                for c in range(len(caps))
            )
        ]
        if options and loads[0, source] > 1:
            parts[node] = min(options)[1]
    return parts


@pytest.mark.parametrize("weighted", [False, True])
def test_refinement_equals_its_plain_twin(weighted: bool) -> None:
    adjacency, train = community_graph(200, 800, community_size=20)
    if weighted:
        src = np.repeat(np.arange(200), np.diff(adjacency.indptr))
        weights = ((src + adjacency.indices) % 5 + 1).astype(np.int32)
        adjacency = Adjacency(adjacency.indptr, adjacency.indices, weights)
    question = question_of(adjacency, train, 4)
    parts = np.random.default_rng(0).integers(4, size=200).astype(np.int32)
    weights = stack_weights(question)
    loads = load_parts(weights, parts, 4)
    caps = np.maximum(question.caps(), loads)
    expected = plain_refine(question, parts, caps)
    before = cut_of(adjacency, parts)

    gained, _ = refine(
        adjacency.indptr, adjacency.indices, adjacency.weights, weights, parts, loads, caps
    )

    assert (parts == expected).all()
    assert (loads == loads_of(question, parts)).all()
    assert cut_of(adjacency, parts) == before - gained


def test_wide_weights_are_kept() -> None:
    adjacency = adjacency_of(np.array([0]), np.array([1]), 2)
    heavy = np.array([2**40, 1])
    question = Question(
        adjacency, np.array([0.5, 0.5]), (Constraint("nodes"), Constraint("b", heavy))
    )

    assert stack_weights(question).tolist() == [[1, 1], [2**40, 1]]
