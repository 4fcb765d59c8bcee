from __future__ import annotations

import numpy as np
import pytest

from headrace.graph.adjacency import Adjacency
from headrace.graph.partitioners.metis import Metis
from headrace.graph.partitioners.subclusters import induced_subgraph, second_level
from tests.unit.graph.cut_graphs import community_graph, cut_of, question_of


@pytest.mark.slow
def test_every_part_is_split_evenly_and_locally() -> None:
    pytest.importorskip("pymetis")
    adjacency, train = community_graph(4000, 20_000, community_size=100)
    question = question_of(adjacency, train, [0.5, 0.3, 0.2])
    parts = Metis().assign(question, lambda step: None)

    clusters = second_level(question, parts, 4, Metis())

    assert clusters.dtype == np.int32
    for part in range(3):
        mine = clusters[parts == part]
        assert np.bincount(mine, minlength=4).max() <= 1.05 * len(mine) / 4 + 1
        seeds = np.bincount(mine, train[parts == part], minlength=4)
        assert seeds.max() <= max(1.05 * seeds.mean(), seeds.mean() + 1)
    random = np.random.default_rng(0).integers(4, size=4000)
    assert cut_of(adjacency, parts * 4 + clusters) < 0.6 * cut_of(adjacency, parts * 4 + random)


def test_one_cluster_is_all() -> None:
    adjacency, train = community_graph(100, 300, community_size=10)
    question = question_of(adjacency, train, 2)

    assert not second_level(question, np.arange(100) % 2, 1, Metis()).any()


def test_parts_smaller_than_clusters() -> None:
    adjacency, _ = community_graph(6, 12, community_size=6)
    question = question_of(adjacency, None, 2)

    clusters = second_level(question, np.array([0, 0, 0, 1, 1, 1]), 3, Metis())

    assert clusters.tolist() == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("weighted", [False, True])
def test_induced_subgraph_equals_its_plain_twin(weighted: bool) -> None:
    adjacency, _ = community_graph(60, 300, community_size=20)
    weights = np.arange(adjacency.num_arcs, dtype=np.int32) if weighted else None
    adjacency = Adjacency(adjacency.indptr, adjacency.indices, weights)
    nodes = np.flatnonzero(np.random.default_rng(0).random(60) < 0.5)
    dense = np.full((60, 60), -1)
    src = np.repeat(np.arange(60), np.diff(adjacency.indptr))
    dense[src, adjacency.indices] = 0 if weights is None else weights

    inner = induced_subgraph(adjacency, nodes)

    rows, columns = np.nonzero(dense[np.ix_(nodes, nodes)] >= 0)
    assert np.repeat(np.arange(len(nodes)), np.diff(inner.indptr)).tolist() == rows.tolist()
    assert inner.indices.tolist() == columns.tolist()
    if inner.weights is not None:
        assert inner.weights.tolist() == dense[nodes[rows], nodes[columns]].tolist()
    assert (inner.weights is not None) == weighted
