from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.adjacency import Adjacency
from headrace.graph.partitioners import kaminpar_partitioner
from headrace.graph.partitioners._base import Question
from headrace.graph.partitioners.kaminpar_partitioner import KaMinPar, write_parhip
from tests.unit.graph.cut_graphs import adjacency_of, community_graph, cut_of, question_of

kaminpar = pytest.importorskip("kaminpar")


def assign(question: Question, scratch: Path) -> np.ndarray:
    return KaMinPar(scratch).assign(question, lambda step: None)


def test_balances_nodes_and_leaves_no_file(tmp_path: Path) -> None:
    adjacency, train = community_graph(4000, 20_000, community_size=100)

    parts = assign(question_of(adjacency, train, 4), tmp_path)

    assert parts.dtype == np.int32
    assert np.bincount(parts).max() <= 1050
    assert cut_of(adjacency, parts) < 0.3 * adjacency.num_arcs
    assert not list(tmp_path.iterdir())


def test_gives_unequal_shares(tmp_path: Path) -> None:
    adjacency, _ = community_graph(4000, 20_000, community_size=100)

    parts = assign(question_of(adjacency, None, [0.5, 0.3, 0.2]), tmp_path)

    assert np.bincount(parts) / 4000 == pytest.approx([0.5, 0.3, 0.2], rel=0.2)
    assert (np.bincount(parts) <= [2100, 1260, 840]).all()


@pytest.mark.parametrize("num_nodes", [200, 2000, 6000])
def test_same_seed_same_answer(tmp_path: Path, num_nodes: int) -> None:
    adjacency, _ = community_graph(num_nodes, 5 * num_nodes, community_size=100)
    question = question_of(adjacency, None, 4, seed=3)
    first = assign(question, tmp_path)

    # The memory of the process is another one every time.
    assert all((assign(question, tmp_path) == first).all() for _ in range(20))


def test_compressed_graphs_get_the_same_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adjacency, train = community_graph(6000, 30_000, community_size=100)
    question = question_of(adjacency, train, 4)
    plain = assign(question, tmp_path)
    monkeypatch.setattr(kaminpar_partitioner, "_FEW_NODES", 0)

    assert (assign(question, tmp_path) == plain).all()


def test_cuts_light_edges(tmp_path: Path) -> None:
    ring = adjacency_of(np.arange(8), np.roll(np.arange(8), -1), 8)
    heavy = np.repeat(np.arange(8), 2) // 4 == ring.indices // 4
    weighted = Adjacency(ring.indptr, ring.indices, np.where(heavy, 100, 1).astype(np.int32))

    parts = assign(Question(weighted, np.array([0.5, 0.5])), tmp_path)

    assert cut_of(weighted, parts) == 4


def test_file_is_read_back(tmp_path: Path) -> None:
    ring = adjacency_of(np.arange(5), np.roll(np.arange(5), -1), 5)
    weighted = Adjacency(ring.indptr, ring.indices, np.arange(10, dtype=np.int32) + 1)
    path = tmp_path / "graph"
    write_parhip(weighted, path)

    graph = kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP)

    assert (graph.n(), graph.m()) == (5, 10)
    for node in range(5):
        arcs = slice(ring.indptr[node], ring.indptr[node + 1])
        expected = list(zip(ring.indices[arcs], range(arcs.start + 1, arcs.stop + 1), strict=True))
        assert graph.neighbors(node) == expected


def test_refuses_more_parts_than_nodes(tmp_path: Path) -> None:
    adjacency = adjacency_of(np.array([0]), np.array([1]), 2)

    with pytest.raises(SpecError, match=r"3 partitions requested, but the graph has 2 nodes"):
        assign(Question(adjacency, np.full(3, 1 / 3)), tmp_path)
