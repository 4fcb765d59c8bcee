from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import chisquare

from headrace.core.errors import SpecError
from headrace.graph.sampling.hop import (
    EdgePart,
    HopRequest,
    LocalSource,
    Rule,
    hop_key,
    hop_over,
    split_by_partition,
)
from tests.support.local_sampling import StitchedSource
from tests.unit.graph.sampling_cases import (
    NODE_TO_NODE,
    Cut,
    cut,
    random_edges,
    twin_of_hop,
)

NUM_NODES = 120


def graph(num_parts: int, *, weights: bool = False, times: bool = False) -> Cut:
    edges = random_edges(NUM_NODES, NUM_NODES, 3000, seed=3, extras=True)
    edges = dataclasses.replace(
        edges,
        weights=edges.weights if weights else None,
        times=edges.times if times else None,
    )
    return cut({"node": NUM_NODES}, {NODE_TO_NODE: edges}, num_parts, seed=num_parts)


def ask(nodes: np.ndarray, fanout: int, **more: object) -> HopRequest:
    key = hop_key(7, 1, 2, 0, NODE_TO_NODE)
    return HopRequest(NODE_TO_NODE, nodes, fanout, key, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize(
    ("times", "rule"),
    [
        (False, Rule()),
        (False, Rule(replace=True)),
        (True, Rule()),
        (True, Rule(replace=True)),
        (True, Rule(last=True)),
    ],
)
@pytest.mark.parametrize("fanout", [-1, 1, 7, 70])
def test_the_kernels_do_as_their_twin(weights: bool, times: bool, rule: Rule, fanout: int) -> None:
    parts = graph(3, weights=weights, times=times).parts[NODE_TO_NODE]
    rng = np.random.default_rng(fanout + 1)
    nodes = rng.integers(0, NUM_NODES, 200)
    request = ask(
        nodes,
        fanout,
        rule=rule,
        trees=rng.integers(0, 50, 200) if times else None,
        bounds=rng.integers(0, 100, 200) if times else None,
    )
    hop = hop_over(parts, request)
    counts, neighbours, edges = twin_of_hop(parts, request)
    assert hop.counts.tolist() == counts
    assert hop.neighbours.tolist() == neighbours
    assert hop.edges.tolist() == edges


@pytest.mark.parametrize("fanout", [-1, 5])
@pytest.mark.parametrize("rule", [Rule(), Rule(replace=True), Rule(edge_ids=False)])
def test_owners_asked_one_by_one_give_the_same(fanout: int, rule: Rule) -> None:
    whole = graph(4, weights=True)
    nodes = np.random.default_rng(0).integers(0, NUM_NODES, 300)
    request = ask(nodes, fanout, rule=rule)
    owners = [LocalSource({NODE_TO_NODE: [part]}) for part in whole.parts[NODE_TO_NODE]]
    stitched = StitchedSource(owners, whole.offsets).hop(request)
    local = LocalSource(whole.parts).hop(request)
    for one, other in zip(dataclasses.astuple(stitched), dataclasses.astuple(local), strict=True):
        assert one.tolist() == other.tolist()
    assert (len(local.edges) > 0) is rule.edge_ids


def test_nodes_are_grouped_by_owner() -> None:
    nodes = np.array([9, 0, 5, 4, 9])
    groups = split_by_partition(nodes, np.array([0, 4, 4, 6, 10]))
    assert [(part, at.tolist()) for part, at in groups] == [(0, [1]), (2, [2, 3]), (3, [0, 4])]


def test_nobody_asks_for_anything() -> None:
    whole = graph(2)
    owners = [LocalSource({NODE_TO_NODE: [part]}) for part in whole.parts[NODE_TO_NODE]]
    nothing = ask(np.empty(0, np.int64), 3)
    assert len(LocalSource(whole.parts).hop(nothing).neighbours) == 0
    assert len(StitchedSource(owners, whole.offsets).hop(nothing).neighbours) == 0


@pytest.mark.parametrize("weights", [False, True])
def test_without_replacement_every_edge_at_most_once(weights: bool) -> None:
    parts = graph(1, weights=weights).parts[NODE_TO_NODE]
    nodes = np.arange(NUM_NODES)
    hop = hop_over(parts, ask(nodes, 10))
    degrees = hop_over(parts, ask(nodes, -1)).counts
    assert hop.counts.tolist() == np.minimum(degrees, 10).tolist()
    assert len(np.unique(hop.edges)) == len(hop.edges)


@pytest.mark.parametrize("rule", [Rule(), Rule(replace=True), Rule(last=True)])
def test_no_neighbour_is_later_than_the_bound(rule: Rule) -> None:
    (part,) = graph(1, times=True).parts[NODE_TO_NODE]
    bounds = np.random.default_rng(5).integers(0, 100, NUM_NODES)
    for fanout in (-1, 4):
        hop = hop_over([part], ask(np.arange(NUM_NODES), fanout, rule=rule, bounds=bounds))
        assert part.times is not None
        assert np.all(part.times[hop.edges] <= np.repeat(bounds, hop.counts))
        assert len(hop.edges) > 0


def star(degree: int, weights: np.ndarray | None = None) -> EdgePart:
    """A node with some in-neighbours."""
    indptr = np.array([0, degree])
    indices = np.arange(degree, dtype=np.int32)
    return EdgePart(0, 0, indptr, indices, np.zeros(1, np.int64), weights)


def drawn_from(part: EdgePart, fanout: int, rule: Rule, num_batches: int) -> np.ndarray:
    """Chosen neighbours by batch."""
    node = np.zeros(1, np.int64)
    hops = []
    for batch in range(num_batches):
        key = hop_key(0, 0, batch, 0, NODE_TO_NODE)
        hops.append(hop_over([part], HopRequest(NODE_TO_NODE, node, fanout, key, rule)).neighbours)
    return np.array(hops)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize(("degree", "fanout"), [(12, 5), (100, 10), (1000, 100)])
def test_neighbours_are_equally_likely(replace: bool, degree: int, fanout: int) -> None:
    drawn = drawn_from(star(degree), fanout, Rule(replace=replace), 4000)
    assert chisquare(np.bincount(drawn.ravel(), minlength=degree)).pvalue > 0.001


def test_pairs_of_neighbours_are_equally_likely() -> None:
    drawn = np.sort(drawn_from(star(6), 2, Rule(), 6000), axis=1)
    counts = np.bincount(drawn[:, 0] * 6 + drawn[:, 1], minlength=36)
    assert chisquare(counts[counts > 0]).pvalue > 0.001
    assert np.count_nonzero(counts) == 15


def test_draws_of_nodes_and_hops_are_unrelated() -> None:
    num_stars, degree = 20_000, 10
    part = EdgePart(
        0, 0, np.arange(num_stars + 1) * degree, np.tile(np.arange(degree), num_stars),
        np.arange(num_stars),
    )  # fmt: skip
    first, second = (
        hop_over([part], HopRequest(
            NODE_TO_NODE, np.arange(num_stars), 1, hop_key(0, 0, 0, hop, NODE_TO_NODE)
        )).neighbours
        for hop in range(2)
    )  # fmt: skip
    for one, other in [(first, second), (first[1:], first[:-1])]:
        counts = np.bincount(one * degree + other, minlength=degree**2)
        assert chisquare(counts).pvalue > 0.001


def test_with_replacement_neighbours_are_as_likely_as_they_weigh() -> None:
    weights = np.array([1.0, 0.0, 2.0, 4.0, 0.5, 2.5])
    drawn = drawn_from(star(6, weights), 4, Rule(replace=True), 5000)
    counts = np.bincount(drawn.ravel(), minlength=6)
    assert counts[1] == 0
    likely = weights[weights > 0] / weights.sum()
    assert chisquare(counts[weights > 0], likely * counts.sum()).pvalue > 0.001


def test_without_replacement_the_first_is_as_likely_as_it_weighs() -> None:
    weights = np.array([1.0, 0.0, 2.0, 4.0, 0.5, 2.5])
    drawn = drawn_from(star(6, weights), 3, Rule(), 8000)
    counts = np.bincount(drawn[:, 0], minlength=6)
    assert counts[1] == 0
    likely = weights[weights > 0] / weights.sum()
    assert chisquare(counts[weights > 0], likely * counts.sum()).pvalue > 0.001
    # The second is drawn among what the first left.
    after_three = np.bincount(drawn[drawn[:, 0] == 3, 1], minlength=6)
    left = np.where(np.arange(6) == 3, 0, weights)
    expected = left[left > 0] / left.sum() * after_three.sum()
    assert chisquare(after_three[left > 0], expected).pvalue > 0.001


def test_every_number_of_a_key_matters() -> None:
    other: tuple[str, str, str] = ("node", "cites", "node")
    keys = {
        hop_key(seed, epoch, batch, hop, edge_type)
        for seed in (0, 1, 2**64 - 1)
        for epoch in range(3)
        for batch in range(3)
        for hop in range(3)
        for edge_type in (NODE_TO_NODE, other)
    }
    assert len(keys) == 3 * 3 * 3 * 3 * 2
    assert all(0 <= key < 2**64 for key in keys)


def test_times_and_bounds_belong_together() -> None:
    with pytest.raises(SpecError, match="pass a time per seed"):
        hop_over(graph(1, times=True).parts[NODE_TO_NODE], ask(np.arange(3), 2))
    with pytest.raises(SpecError, match="name the time column"):
        hop_over(graph(1).parts[NODE_TO_NODE], ask(np.arange(3), 2, rule=Rule(last=True)))


def test_the_latest_neighbours_are_taken() -> None:
    times = np.array([5, 1, 9, 7, 3])
    part = dataclasses.replace(star(5), times=times)
    bounds = np.array([8])
    hop = hop_over([part], ask(np.zeros(1, np.int64), 2, rule=Rule(last=True), bounds=bounds))
    assert hop.neighbours.tolist() == [3, 0]
    assert all(times[a] >= times[b] for a, b in pairwise(hop.neighbours))


def test_the_latest_neighbours_are_not_drawn_again() -> None:
    with pytest.raises(SpecError, match="latest neighbours cannot be sampled with replacement"):
        Rule(replace=True, last=True)


def test_weights_and_times_are_numbers_per_edge() -> None:
    with pytest.raises(SpecError, match="one number per edge"):
        star(5, np.zeros(4))
    with pytest.raises(SpecError, match="one number per edge"):
        star(5, np.zeros(5, bool))
    with pytest.raises(SpecError, match="one integer per edge"):
        dataclasses.replace(star(5), times=np.zeros(5))
    half = star(5, np.array([0, 0, 1, 0, 0], np.float16))
    assert drawn_from(half, 2, Rule(), 3).tolist() == [[2], [2], [2]]


def test_a_tree_and_a_bound_per_node() -> None:
    for name in ("trees", "bounds"):
        with pytest.raises(SpecError, match=f"3 nodes and 2 {name}"):
            hop_over([star(5)], ask(np.zeros(3, np.int64), 2, **{name: np.zeros(2, np.int64)}))
