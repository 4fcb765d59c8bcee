"""Draws that prefer neighbours in the partition of the seeds."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.sampling.hop import EdgePart, HopRequest, LocalSource, Rule, hop_over
from headrace.graph.sampling.neighbor_sampler import BatchKey, Sampler
from headrace.graph.sampling.remote_scores import RemoteScores

EDGE = ("node", "to", "node")
NEAR = (0, 3)
NUM_SOURCES = 7


def star(num_nodes: int, num_sources: int = NUM_SOURCES) -> EdgePart:
    """Nodes that all have the same sources: 0, 1, ..."""
    indptr = np.arange(num_nodes + 1) * num_sources
    indices = np.tile(np.arange(num_sources), num_nodes)
    return EdgePart(0, 0, indptr, indices, np.arange(num_nodes))


def drawn(part: EdgePart, fanout: int, far: float, replace: bool = False, key: int = 5) -> Any:
    nodes = np.arange(len(part.originals))
    near = NEAR if far < 1 else None
    hop = hop_over([part], HopRequest(EDGE, nodes, fanout, key, Rule(replace, far=far), near=near))
    assert (hop.counts == (fanout if replace else min(fanout, NUM_SOURCES))).all()
    assert np.array_equal(part.indices[hop.edges], hop.neighbours)
    return hop.neighbours.reshape(len(nodes), -1)


def chances_in_order(far: float, fanout: int) -> np.ndarray:
    """Chance of every source to be among `fanout` successive draws by weight, exactly."""
    weights = np.where(np.arange(NUM_SOURCES) < NEAR[1], 1.0, far)
    chances = np.zeros(NUM_SOURCES)
    for order in permutations(range(NUM_SOURCES), fanout):
        chance, left = 1.0, weights.sum()
        for source in order:
            chance *= weights[source] / left
            left -= weights[source]
        chances[list(order)] += chance
    return chances


@pytest.mark.parametrize("fanout", [1, 3, 6])
@pytest.mark.parametrize("far", [0.25, 0.05])
def test_frequencies_are_those_of_successive_weighted_draws(far: float, fanout: int) -> None:
    num = 40_000
    found = np.bincount(drawn(star(num), fanout, far).ravel(), minlength=NUM_SOURCES)
    chances = chances_in_order(far, fanout)
    # Each is a sum of independent draws of one node each; 5 standard deviations for 7 sources.
    deviation = np.sqrt(num * chances * (1 - chances))
    assert (np.abs(found - num * chances) < 5 * deviation + 1).all()


def test_frequencies_with_replacement_are_the_weights() -> None:
    num, far = 40_000, 0.25
    found = np.bincount(drawn(star(num), 2, far, replace=True).ravel(), minlength=NUM_SOURCES)
    chances = np.where(np.arange(NUM_SOURCES) < NEAR[1], 1.0, far)
    chances /= chances.sum()
    deviation = np.sqrt(2 * num * chances * (1 - chances))
    assert (np.abs(found - 2 * num * chances) < 5 * deviation).all()


@pytest.mark.parametrize(("fanout", "num_sources"), [(1, 7), (3, 7), (50, 80)])
def test_scores_are_weights_of_far_sources(fanout: int, num_sources: int) -> None:
    num = 20_000
    # The second weight belongs to a near source and must not matter.
    scores = np.full(num_sources, 0.5, np.float32)
    scores[[1, 3, 4]] = 0.02, 0.1, 1.0
    request = HopRequest(EDGE, np.arange(num), fanout, 5, Rule(far=0.4), near=NEAR, scores=scores)
    hop = hop_over([star(num, num_sources)], request)
    found = np.bincount(hop.neighbours, minlength=num_sources)
    weights = scores.astype(float)
    weights[: NEAR[1]] = 1
    if fanout == 1:
        chances = weights / weights.sum()
        deviation = np.sqrt(num * chances * (1 - chances))
        assert (np.abs(found - num * chances) < 5 * deviation).all()
    same = found[[0, 1, 2, 4]]
    assert np.ptp(same) < 7 * np.sqrt(num)
    assert found[3] < found[5] < found[4]


def test_a_sampler_uses_the_scores_of_its_home_partition() -> None:
    source = LocalSource({EDGE: [star(400)]})
    offsets = {"node": np.array([0, 3, 400])}
    weights = np.full(400, 0.01, np.float32)
    scores = RemoteScores(0, "node", weights, 0.01, "x", None)
    sampler = Sampler(source, {"node": 400}, [EDGE], Rule(), offsets)
    sampler.scores = {0: scores}

    def num_far(seeds: list[int]) -> int:
        batches = [
            sampler.sample_hetero({"node": np.array(seeds)}, [3], BatchKey(0, 0, number))
            for number in range(200)
        ]
        rows = [out.node["node"][out.row[EDGE]] for out in batches]
        return int((np.concatenate(rows) >= 3).sum())

    # 3 of 7 sources are near; seeds of another partition draw uniformly.
    assert num_far([0, 1]) < 0.1 * num_far([300, 301])


def test_sources_without_a_score_do_not_read_beyond_the_scores() -> None:
    # Ids of a damaged graph; they are reported after the draw.
    part = star(50, 300)
    request = HopRequest(
        EDGE, np.arange(50), 200, 5, Rule(far=0.4), near=NEAR, scores=np.full(10, 0.5, np.float32)
    )
    assert len(hop_over([part], request).neighbours) == 50 * 200


def test_no_neighbour_is_drawn_twice_and_short_lists_are_whole() -> None:
    rows = drawn(star(500), 5, 0.02)
    assert all(len(set(row)) == 5 for row in rows.tolist())
    assert (drawn(star(20), 9, 0.02) == np.arange(NUM_SOURCES)).all()


def test_draws_depend_on_the_key_and_the_original_id_alone() -> None:
    part = star(50)
    whole = drawn(part, 3, 0.25)
    assert np.array_equal(whole, drawn(part, 3, 0.25))
    assert not np.array_equal(whole, drawn(part, 3, 0.25, key=6))
    some = np.array([40, 2, 17])
    rule = Rule(far=0.25)
    hop = hop_over([part], HopRequest(EDGE, some, 3, 5, rule, near=NEAR))
    assert np.array_equal(hop.neighbours.reshape(3, 3), whole[some])


@pytest.mark.parametrize("seed", [-1, 400])
def test_a_seed_out_of_range_is_named(seed: int) -> None:
    source = LocalSource({EDGE: [star(400)]})
    sampler = Sampler(source, {"node": 400}, [EDGE], Rule(far=0.5), {"node": np.array([0, 400])})
    with pytest.raises(SpecError, match=str(seed)):
        sampler.sample_hetero({"node": np.array([seed])}, [2], BatchKey(0, 0, 0))
    with pytest.raises(SpecError, match="offsets"):
        Sampler(source, {"node": 400}, [EDGE], Rule(far=0.5))


def test_a_hop_needs_both_far_and_near() -> None:
    for rule, near in ((Rule(far=0.5), None), (Rule(), NEAR)):
        with pytest.raises(SpecError, match="give both or neither"):
            hop_over([star(2)], HopRequest(EDGE, np.arange(2), 1, 0, rule, near=near))
    for far in (0, -1, 1.5, 0.009, float("nan")):
        with pytest.raises(SpecError, match="far is"):
            Rule(far=far)


def test_weights_and_far_are_refused_together() -> None:
    part = star(2)
    weighted = EdgePart(0, 0, part.indptr, part.indices, part.originals, np.ones(14, np.float32))
    with pytest.raises(SpecError, match="cannot be combined"):
        hop_over([weighted], HopRequest(EDGE, np.arange(2), 1, 0, Rule(far=0.5), near=NEAR))


def test_batches_prefer_the_partition_of_most_seeds(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    from headrace.graph.loader.neighbor_loader import NeighborLoader
    from tests.unit.graph.loader.loading_graphs import (
        FakeStore,
        assert_same,
        in_parts,
        random_data,
    )

    graph = in_parts(random_data(400, 20_000), tmp_path, 4)
    own = np.sort(graph.part(2).original_ids("node"))
    settings: dict[str, Any] = {"num_neighbors": [5, 2], "batch_size": 2, "input_nodes": own}
    shares = {}
    for far in (1.0, 0.1):
        rows = [batch.n_id.numpy() for batch in NeighborLoader(graph, far=far, **settings)]
        ids = graph.to_new("node", np.concatenate(rows))
        shares[far] = float(np.mean(graph.owner("node", ids) != 2))
    assert shares[0.1] < 0.5 * shares[1.0]
    connect = {part: partial(FakeStore, graph, part, True) for part in (0, 1, 3)}
    here = NeighborLoader(graph, far=0.1, **settings)
    there = NeighborLoader(graph, far=0.1, connect=connect, **settings)
    for left, right in zip(here, there, strict=True):
        assert_same(left, right)
    with pytest.raises(SpecError, match="cannot be combined"):
        NeighborLoader(graph, far=0.1, weight_attr="edge_weight", **settings)
