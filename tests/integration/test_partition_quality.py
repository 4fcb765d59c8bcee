"""Cuts of real graphs against METIS alone with the same constraints."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from headrace.graph.adjacency import Adjacency
from headrace.graph.build.cut_quality import measure
from headrace.graph.partitioners._base import Question
from headrace.graph.partitioners.g3_communication import balance_communication
from headrace.graph.partitioners.metis import Metis
from headrace.graph.partitioners.rebalance import repair
from tests.unit.graph.cut_graphs import adjacency_of, community_graph, loads_of, question_of

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(
    not DATA.exists() and "CI" not in os.environ, reason="the datasets are not here"
)
pytestmark = pytest.mark.integration

SMALL = ("planetoid/cora", "planetoid/citeseer")
LARGE = (
    "planetoid/pubmed",
    "amazon_photo/amazon_electronics_photo",
    "amazon_computers/amazon_electronics_computers",
    "coauthor_cs/ms_academic_cs",
    "coauthor_physics/ms_academic_phy",
    "debian_bookworm/bookworm",
    "wordnet30/wordnet",
)


def real_graph(name: str) -> tuple[Adjacency, np.ndarray]:
    """A graph and its training nodes; every second node, by chance, if none are given."""
    with np.load(DATA / f"{name}.npz") as file:
        if "edge_index" in file:
            src, dst = file["edge_index"]
            return adjacency_of(src, dst, len(file["y"])), file["train_mask"].astype(np.uint8)
        if "adj_indptr" in file:
            num_nodes = len(file["labels"])
            src = np.repeat(np.arange(num_nodes), np.diff(file["adj_indptr"]))
            dst = file["adj_indices"]
        else:
            num_nodes, src, dst = len(file["y"]), file["src"], file["dst"]
    train = np.random.default_rng(0).random(num_nodes) < 0.5
    return adjacency_of(src, dst, num_nodes), train.astype(np.uint8)


def check_against_metis(question: Question) -> None:
    alone = measure(question, Metis(tightness=1.0, num_tries=1).assign(question, lambda step: None))

    repaired = repair(question, Metis().assign(question, lambda step: None))
    balanced = balance_communication(question, repaired)

    before, after = measure(question, repaired), measure(question, balanced)
    assert before.edge_cut <= 1.03 * alone.edge_cut
    assert after.edge_cut <= 1.03 * before.edge_cut + 1e-9
    assert after.volume <= 1.02 * before.volume
    assert after.imbalance <= max(1.03, before.imbalance)
    for parts in (repaired, balanced):
        assert (loads_of(question, parts) <= question.caps()).all()


@needs_data
@pytest.mark.parametrize("num_parts", [4, 16])
@pytest.mark.parametrize(
    "name",
    [*SMALL[:2], *(pytest.param(n, marks=pytest.mark.campaign) for n in (*SMALL[2:], *LARGE))],
)
def test_real_graphs(name: str, num_parts: int) -> None:
    pytest.importorskip("pymetis")
    check_against_metis(question_of(*real_graph(name), num_parts))


@pytest.mark.parametrize("num_parts", [4, pytest.param(16, marks=pytest.mark.campaign)])
def test_community_graph_is_balanced_to_three_percent(num_parts: int) -> None:
    pytest.importorskip("pymetis")
    adjacency, train = community_graph(20_000, 200_000, community_size=100)
    question = question_of(adjacency, train, num_parts)
    check_against_metis(question)
    parts = repair(question, Metis().assign(question, lambda step: None))

    quality = measure(question, balance_communication(question, parts))

    assert quality.imbalance <= 1.03
