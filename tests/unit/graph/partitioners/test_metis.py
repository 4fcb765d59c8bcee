from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.adjacency import Adjacency
from headrace.graph.partitioners._base import Constraint, Question
from headrace.graph.partitioners.metis import Metis
from headrace.graph.partitioners.rebalance import repair
from tests.unit.graph.cut_graphs import adjacency_of, community_graph, cut_of, loads_of, question_of

pytest.importorskip("pymetis")


def assign(question: Question, num_tries: int | None = 1) -> np.ndarray:
    return Metis(num_tries=num_tries).assign(question, lambda step: None)


def test_keeps_every_constraint() -> None:
    adjacency, train = community_graph(4000, 20_000, community_size=100)
    question = question_of(adjacency, train, 4)

    parts = assign(question)

    assert parts.dtype == np.int32
    assert (loads_of(question, parts) <= question.caps()).all()
    assert cut_of(adjacency, parts) < 0.3 * adjacency.num_arcs


def test_more_tries_cut_less() -> None:
    adjacency, train = community_graph(1000, 5000, community_size=50)
    question = question_of(adjacency, train, 8)

    once, often = assign(question, 1), assign(question, None)

    assert cut_of(adjacency, often) <= cut_of(adjacency, repair(question, once))
    assert (loads_of(question, often) <= question.caps()).all()


def test_gives_unequal_shares() -> None:
    adjacency, train = community_graph(4000, 20_000, community_size=100)
    question = question_of(adjacency, train, [0.5, 0.3, 0.2])

    loads = loads_of(question, assign(question))

    assert (loads <= question.caps()).all()
    assert loads[0] / 4000 == pytest.approx([0.5, 0.3, 0.2], rel=0.1)


def test_same_seed_same_answer() -> None:
    adjacency, train = community_graph(1000, 5000, community_size=50)
    first, again, other = (assign(question_of(adjacency, train, 4, seed)) for seed in (7, 7, 8))

    assert (first == again).all()
    assert (first != other).any()


def test_cuts_light_edges() -> None:
    ring = adjacency_of(np.arange(8), np.roll(np.arange(8), -1), 8)
    heavy = np.repeat(np.arange(8), 2) // 4 == ring.indices // 4
    weighted = Adjacency(ring.indptr, ring.indices, np.where(heavy, 100, 1).astype(np.int32))

    parts = assign(Question(weighted, np.array([0.5, 0.5])))

    assert cut_of(weighted, parts) == 4


def test_does_without_edges_and_training_nodes() -> None:
    empty = Adjacency(np.zeros(11, np.int64), np.zeros(0, np.int32))
    constraints = (Constraint("nodes"), Constraint("train", np.zeros(10, np.uint8)))

    parts = assign(Question(empty, np.array([0.5, 0.5]), constraints))

    assert np.bincount(parts).tolist() == [5, 5]


def test_one_part_is_all() -> None:
    adjacency, _ = community_graph(100, 300, community_size=10)

    assert not assign(Question(adjacency, np.array([1.0]))).any()


def test_refuses_more_parts_than_nodes() -> None:
    adjacency = adjacency_of(np.array([0]), np.array([1]), 2)

    with pytest.raises(SpecError, match=r"3 partitions requested, but the graph has 2 nodes"):
        assign(Question(adjacency, np.full(3, 1 / 3)))


def test_termination_comes_after_the_call() -> None:
    # In a process of its own: here the system may hand the signal to another thread.
    code = """
import os, signal
from headrace.graph.partitioners.metis import termination_waits
seen = []
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
with termination_waits():
    os.kill(os.getpid(), signal.SIGTERM)
    assert not seen
assert seen == [signal.SIGTERM]
"""
    # Libraries for matrices start threads when numpy is imported.
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=alone)
