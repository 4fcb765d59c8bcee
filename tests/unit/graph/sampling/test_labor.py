"""Draws with random numbers that all nodes of a hop share (LABOR)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from headrace.core.errors import SpecError
from headrace.graph.sampling.hop import EdgePart, HopRequest, LocalSource, Rule, hop_key, hop_over
from headrace.graph.sampling.neighbor_sampler import BatchKey
from tests.support.local_sampling import HomogeneousSampler, StitchedSource
from tests.unit.graph.sampling_cases import NODE_TO_NODE, Cut, cut, random_edges, twin_of_hop

NUM_NODES = 200
EDGES = random_edges(NUM_NODES, NUM_NODES, 4000, seed=1)
LABOR = Rule(labor=True)


def graph(num_parts: int) -> Cut:
    return cut({"node": NUM_NODES}, {NODE_TO_NODE: EDGES}, num_parts, seed=num_parts)


def request_of(nodes: np.ndarray, fanout: int, batch: int = 0, rule: Rule = LABOR) -> HopRequest:
    return HopRequest(NODE_TO_NODE, nodes, fanout, hop_key(7, 0, batch, 0, NODE_TO_NODE), rule)


def lists(*sources: list[int]) -> EdgePart:
    """Nodes with these in-neighbours."""
    indptr = np.cumsum([0, *map(len, sources)])
    indices = np.concatenate(sources).astype(np.int32)
    return EdgePart(0, 0, indptr, indices, np.arange(len(sources)))


@pytest.mark.parametrize("fanout", [-1, 1, 7, 70])
def test_the_kernel_does_as_its_twin(fanout: int) -> None:
    parts = graph(3).parts[NODE_TO_NODE]
    request = request_of(np.random.default_rng(0).integers(0, NUM_NODES, 300), fanout)
    hop = hop_over(parts, request)
    counts, neighbours, edges = twin_of_hop(parts, request)
    assert hop.counts.tolist() == counts
    assert hop.neighbours.tolist() == neighbours
    assert hop.edges.tolist() == edges


def test_short_lists_are_whole_and_no_edge_is_taken_twice() -> None:
    parts = graph(1).parts[NODE_TO_NODE]
    nodes = np.arange(NUM_NODES)
    everything = hop_over(parts, request_of(nodes, -1, rule=Rule()))
    for fanout in (8, 15, 100):
        hop = hop_over(parts, request_of(nodes, fanout))
        assert hop.counts.tolist() == np.minimum(everything.counts, fanout).tolist()
        assert len(np.unique(hop.edges)) == len(hop.edges)
        is_short = everything.counts <= fanout
        assert 0 < is_short.sum() < NUM_NODES
        short, whole = np.repeat(is_short, hop.counts), np.repeat(is_short, everything.counts)
        assert hop.edges[short].tolist() == everything.edges[whole].tolist()


@pytest.mark.parametrize(("degree", "fanout"), [(12, 5), (100, 10), (300, 80)])
def test_every_neighbour_is_equally_likely_over_batches(degree: int, fanout: int) -> None:
    # Lists that overlap: each alone must have the chances k / d.
    part = lists(list(range(degree)), list(range(degree // 2, degree + degree // 2)))
    drawn = np.stack(
        [
            hop_over([part], request_of(np.arange(2), fanout, batch)).neighbours.reshape(2, -1)
            for batch in range(3000)
        ]
    )
    for node, first in ((0, 0), (1, degree // 2)):
        counts = np.bincount(drawn[:, node].ravel() - first, minlength=degree)
        assert chisquare(counts).pvalue > 0.001


def test_pairs_of_neighbours_are_equally_likely() -> None:
    part = lists(list(range(6)))
    drawn = np.sort(
        [hop_over([part], request_of(np.zeros(1, int), 2, b)).neighbours for b in range(6000)],
        axis=1,
    )
    counts = np.bincount(drawn[:, 0] * 6 + drawn[:, 1], minlength=36)
    assert np.count_nonzero(counts) == 15
    assert chisquare(counts[counts > 0]).pvalue > 0.001


def test_nodes_with_the_same_neighbours_take_the_same() -> None:
    part = lists([1, 4, 5, 9, 11], [0, 3], [1, 4, 5, 9, 11], [4, 5, 9])
    for batch in range(20):
        hop = hop_over([part], request_of(np.arange(4), 2, batch))
        first, _, third, fourth = hop.neighbours.reshape(4, 2).tolist()
        assert first == third
        # What is among the smallest of a list is so in any list that it contains.
        assert set(first) & {4, 5, 9} <= set(fourth)


def sampler(whole: Cut, rule: Rule, stitched: bool = False) -> HomogeneousSampler:
    owners = [LocalSource({NODE_TO_NODE: [part]}) for part in whole.parts[NODE_TO_NODE]]
    source = StitchedSource(owners, whole.offsets) if stitched else LocalSource(whole.parts)
    return HomogeneousSampler(source, {"node": NUM_NODES}, [NODE_TO_NODE], rule)


def test_a_batch_is_the_same_whatever_the_number_of_parts() -> None:
    seeds = np.random.default_rng(0).choice(NUM_NODES, 20, replace=False)
    batches = []
    for num_parts in (1, 2, 4, 7):
        whole = graph(num_parts)
        for stitched in (False, True):
            out = sampler(whole, LABOR, stitched).sample(
                whole.new_ids["node"][seeds], [4, 3, 2], BatchKey(1, 2, 3)
            )
            ids = whole.originals["node"][out.node]
            batches.append([ids.tolist(), out.row.tolist(), out.col.tolist()])
    assert all(batch == batches[0] for batch in batches)


def test_batches_have_fewer_nodes_and_as_many_edges() -> None:
    whole = graph(2)
    sizes = {}
    for rule in (Rule(), LABOR):
        out = [
            sampler(whole, rule).sample(np.arange(30), [3], BatchKey(0, 0, batch))
            for batch in range(30)
        ]
        sizes[rule] = sum(len(each.node) for each in out), sum(len(each.row) for each in out)
    assert sizes[LABOR][0] < 0.9 * sizes[Rule()][0]
    assert sizes[LABOR][1] == sizes[Rule()][1]


def test_hops_and_batches_have_other_numbers() -> None:
    # Node 0 has the neighbours 1 to 8, each of which has the neighbours 10 to 29.
    part = lists(list(range(1, 9)), *[list(range(10, 30))] * 8, *[[0]] * 21)
    source = LocalSource({NODE_TO_NODE: [part]})
    one = HomogeneousSampler(source, {"node": 30}, [NODE_TO_NODE], LABOR)
    taken = []
    for batch in range(8):
        seeds = np.array([0, 1])
        out = one.sample(seeds, [2, 2], BatchKey(0, 0, batch))
        by_hop = np.split(out.node[out.row], [out.num_sampled_edges[0]])
        in_first = by_hop[0][by_hop[0] >= 10]
        in_second = np.unique(by_hop[1][by_hop[1] >= 10])
        assert len(in_second) == 2
        taken += [tuple(sorted(in_first)), tuple(sorted(in_second))]
    assert len(set(taken)) > 12


@pytest.mark.parametrize(
    "more", [{"replace": True}, {"disjoint": True}, {"last": True}, {"far": 0.5}]
)
def test_rules_that_exclude_each_other(more: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=f"labor cannot be combined with {next(iter(more))}"):
        Rule(labor=True, **more)


def test_weights_and_times_are_refused() -> None:
    part = lists([0, 1, 2])
    ones = np.ones(3, np.int64)
    nodes = np.zeros(1, np.int64)
    others = {"weights": replace(part, weights=ones), "times": replace(part, times=ones)}
    for name, other in others.items():
        with pytest.raises(SpecError, match=f"labor cannot be combined with {name}"):
            hop_over([other], request_of(nodes, 2))


def test_ids_of_a_damaged_graph_do_not_read_beyond_the_originals() -> None:
    part = lists([0, 1, 2**30, 3])
    part = replace(part, source_ids=partial(np.arange, 4, dtype=np.int32))
    assert len(hop_over([part], request_of(np.zeros(1, np.int64), 3)).neighbours) == 3


def test_loaders_give_the_same_batches_from_memory_partitions_and_stores(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric")
    from headrace.graph.loader.neighbor_loader import LinkNeighborLoader, NeighborLoader
    from tests.unit.graph.loader import loading_graphs as graphs

    for data, name in (
        (graphs.random_data(200, 3000), None),
        (graphs.random_hetero(), "paper"),
    ):
        settings: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 16, "labor": True}
        folder = tmp_path / str(name)
        cuts = {num: graphs.in_parts(data, folder, num) for num in (1, 4)}
        connect = {part: partial(graphs.FakeStore, cuts[4], part, True) for part in (0, 2, 3)}
        sources: list[dict[str, Any]] = [
            {"data": cuts[1]}, {"data": cuts[4]}, {"data": cuts[4], "connect": connect},
        ]  # fmt: skip
        seeds = np.arange(60)
        for source in sources:
            inputs = seeds if name is None else (name, seeds)
            wanted = NeighborLoader(data, input_nodes=inputs, **settings)
            for left, right in zip(
                wanted, NeighborLoader(input_nodes=inputs, **source, **settings), strict=True
            ):
                graphs.assert_same(left, right, without=("train_mask",))
        if name is None:
            links = data.edge_index[:, :50]
            wanted, other = (
                LinkNeighborLoader(each, edge_label_index=links, neg_sampling="binary", **settings)
                for each in (data, cuts[4])
            )
            for left, right in zip(wanted, other, strict=True):
                graphs.assert_same(left, right)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"replace": True}, "replace"),
        ({"disjoint": True}, "disjoint"),
        ({"weight_attr": "edge_weight"}, "weight_attr"),
        ({"time_attr": "time"}, "time_attr"),
        ({"far": 0.5}, "far"),
    ],
)
def test_loaders_refuse_what_labor_excludes(more: dict[str, Any], word: str) -> None:
    pytest.importorskip("torch_geometric")
    from headrace.graph.loader.neighbor_loader import NeighborLoader
    from tests.unit.graph.loader.loading_graphs import random_data

    with pytest.raises(SpecError, match=f"labor cannot be combined with {word}"):
        NeighborLoader(random_data(), [2], labor=True, **more)
