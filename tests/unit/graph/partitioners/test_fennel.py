"""Re-streamed Fennel keeps its caps, finds communities, and equals its twin."""

from __future__ import annotations

import math

import numpy as np
import pytest

from headrace.graph.adjacency import Adjacency
from headrace.graph.partitioners._base import Constraint, Question
from headrace.graph.partitioners.fennel import Fennel
from tests.unit.graph.cut_graphs import adjacency_of, community_graph, cut_of, loads_of, question_of


def assign(question: Question, **settings: float) -> np.ndarray:
    return Fennel(**settings).assign(question, lambda step: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_parts", [1, 2, 4, 16])
def test_keeps_every_cap_and_finds_communities(num_parts: int) -> None:
    adjacency, train = community_graph(20_000, 200_000, community_size=100)
    question = question_of(adjacency, train, num_parts)
    parts = assign(question)
    assert parts.dtype == np.int32
    assert parts.min() >= 0
    assert np.all(loads_of(question, parts) <= question.caps() + 1e-9)
    assert cut_of(adjacency, parts) < 0.5 * adjacency.num_arcs


def test_gives_unequal_shares() -> None:
    adjacency, train = community_graph(20_000, 200_000, community_size=100)
    question = question_of(adjacency, train, [0.5, 0.3, 0.2])
    parts = assign(question)
    assert np.all(loads_of(question, parts) <= question.caps() + 1e-9)
    assert np.bincount(parts) / 20_000 == pytest.approx([0.5, 0.3, 0.2], rel=0.15)


def test_later_passes_cut_less() -> None:
    adjacency, train = community_graph(20_000, 200_000, community_size=100)
    question = question_of(adjacency, train, 8)
    once, often = assign(question, num_restreams=0), assign(question)
    assert cut_of(adjacency, often) < 0.8 * cut_of(adjacency, once)


def test_the_same_seed_gives_the_same_answer() -> None:
    adjacency, train = community_graph(20_000, 100_000)
    first, again, other = (
        assign(question_of(adjacency, train, 4, seed=seed)) for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_steps_are_named() -> None:
    steps: list[str] = []
    adjacency, _ = community_graph(100, 500, community_size=20)
    Fennel(num_restreams=1).assign(question_of(adjacency, None, 2), steps.append)
    assert steps == ["stream 1 of 2", "stream 2 of 2"]


def test_nothing_to_balance_and_nothing_to_cut() -> None:
    lonely = Adjacency(np.zeros(11, np.int64), np.empty(0, np.int32))
    idle = Constraint("train", np.zeros(10, np.uint8))
    question = Question(lonely, np.array([0.5, 0.5]), (Constraint("nodes"), idle))
    assert np.bincount(assign(question)).tolist() == [5, 5]


def test_too_many_of_both_is_resolved_by_a_swap() -> None:
    """Hubs and leaves apart, each part over one cap: no single move fits, and still it ends."""
    hubs = np.repeat(np.arange(20), 40)
    leaves = np.tile(np.arange(20, 60), 20)
    adjacency = adjacency_of(hubs, leaves, 60)
    question = question_of(adjacency, None, 2)
    assert np.all(loads_of(question, assign(question)) <= question.caps() + 1e-9)


# --- the twin in plain Python ---------------------------------------------------------------------


def penalty(loads: np.ndarray, shares: np.ndarray, p: int, pull: float) -> float:
    return pull * math.sqrt(max(loads[p] / shares[p]))


def stream(
    question: Question, order: list[int], parts: list[int], caps: np.ndarray, shares: np.ndarray
) -> None:
    adjacency = question.adjacency
    num_constraints = len(question.constraints)
    own = np.stack([question.weights(c) for c in range(num_constraints)], axis=1).astype(float)
    for v in order:
        before, parts[v] = parts[v], -1
        loads = np.zeros_like(caps)
        for u, p in enumerate(parts):
            if p >= 0:
                loads[p] += own[u]
        arcs = range(adjacency.indptr[v], adjacency.indptr[v + 1])
        weight = {e: 1 if adjacency.weights is None else int(adjacency.weights[e]) for e in arcs}
        strength = max(sum(weight.values()), 1)
        scores = []
        for p in range(question.num_parts):
            gain = sum(weight[e] for e in arcs if parts[adjacency.indices[e]] == p)
            scores.append(gain - penalty(loads, shares, p, 1.0) * strength)
        fits = [
            all(own[v] <= 0) or all((own[v] <= 0) | (loads[p] + own[v] <= caps[p]))
            for p in range(question.num_parts)
        ]
        if any(fits):
            best = max(s for s, fit in zip(scores, fits, strict=True) if fit)
            tied = [p for p in range(question.num_parts) if fits[p] and scores[p] == best]
            parts[v] = before if before in tied else tied[0]
        else:
            over = [
                sum(own[v] / caps[p] * np.maximum((loads[p] + own[v]) / caps[p] - 1, 0))
                for p in range(question.num_parts)
            ]
            parts[v] = over.index(min(over))


@pytest.mark.parametrize("seed", range(6))
def test_equals_its_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    adjacency, train = community_graph(60, 300, community_size=15, seed=seed)
    if seed % 2:
        pairs = rng.integers(1, 6, size=(60, 60))
        rows = np.repeat(np.arange(60), np.diff(adjacency.indptr))
        weights = (pairs + pairs.T)[rows, adjacency.indices].astype(np.int32)
        adjacency = Adjacency(adjacency.indptr, adjacency.indices, weights)
    question = question_of(adjacency, train, [0.4, 0.35, 0.25], tolerance=0.01)
    caps = question.caps().T
    shares = caps / 1.01
    parts = [-1] * 60
    for looseness in (3.0, 1.0, 1.0):
        stream(question, list(range(60)), parts, shares + (caps - shares) * looseness, shares)
    assert assign(question, num_restreams=2).tolist() == parts
