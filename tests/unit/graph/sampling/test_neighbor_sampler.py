from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.sampling.hop import LocalSource, Rule
from headrace.graph.sampling.neighbor_sampler import BatchKey, HeteroSampled
from headrace.graph.schema import EdgeType
from tests.support.local_sampling import HomogeneousSampler, Sampled, StitchedSource
from tests.unit.graph.sampling_cases import NODE_TO_NODE, Cut, Edges, cut, random_edges

NUM_NODES = 300
EDGES = random_edges(NUM_NODES, NUM_NODES, 4000, seed=1, extras=True)
PLAIN = Edges(EDGES.src, EDGES.dst)
KEY = BatchKey(seed=3, epoch=1, batch=4)

TYPES = {"paper": 200, "author": 150, "field": 10}
WRITES: EdgeType = ("author", "writes", "paper")
CITES: EdgeType = ("paper", "cites", "paper")
WRITTEN: EdgeType = ("paper", "written by", "author")
ABOUT: EdgeType = ("paper", "in", "field")
RELATIONS = {
    WRITES: random_edges(150, 200, 900, seed=2),
    CITES: random_edges(200, 200, 2000, seed=3),
    WRITTEN: random_edges(200, 150, 900, seed=4),
    ABOUT: random_edges(200, 10, 400, seed=5),
}


def sampler(whole: Cut, *, stitched: bool = False, **more: object) -> HomogeneousSampler:
    num_nodes = {name: len(ids) for name, ids in whole.originals.items()}
    source = LocalSource(whole.parts)
    if stitched:
        owners = [
            LocalSource({e: [parts[p]] for e, parts in whole.parts.items()})
            for p in range(len(next(iter(whole.offsets.values()))) - 1)
        ]
        return HomogeneousSampler(
            StitchedSource(owners, whole.offsets),
            num_nodes,
            list(whole.parts),
            **more,  # type: ignore[arg-type]
        )
    return HomogeneousSampler(source, num_nodes, list(whole.parts), **more)  # type: ignore[arg-type]


def homogeneous(edges: Edges, num_parts: int) -> Cut:
    return cut({"node": NUM_NODES}, {NODE_TO_NODE: edges}, num_parts, seed=num_parts)


def by_original(out: Sampled, whole: Cut) -> list[object]:
    """All of a batch that does not depend on the partitioning."""
    return [
        whole.originals["node"][out.node].tolist(),
        out.row.tolist(),
        out.col.tolist(),
        None if out.tree is None else out.tree.tolist(),
        out.num_sampled_nodes,
        out.num_sampled_edges,
    ]


def check_counts(out: Sampled, num_seeds: int, num_hops: int) -> None:
    assert out.num_sampled_nodes[0] == num_seeds
    assert len(out.num_sampled_nodes) == num_hops + 1
    assert len(out.num_sampled_edges) == num_hops
    assert sum(out.num_sampled_nodes) == len(out.node)
    assert sum(out.num_sampled_edges) == len(out.row) == len(out.col)
    known = np.cumsum(out.num_sampled_nodes)
    ends = np.cumsum([0, *out.num_sampled_edges])
    for hop in range(num_hops):
        edges = slice(ends[hop], ends[hop + 1])
        assert np.all(out.row[edges] < known[hop + 1])
        assert np.all(out.col[edges] < known[hop])
        assert np.all(out.col[edges] >= (known[hop - 1] if hop else 0))


@pytest.mark.parametrize("rule", [Rule(), Rule(replace=True), Rule(disjoint=True)])
@pytest.mark.parametrize("edges", [PLAIN, dataclasses.replace(EDGES, times=None)])
@pytest.mark.parametrize("fanouts", [[4, 3, 2], [-1, 2], [-1, -1]])
def test_a_batch_is_the_same_whatever_the_number_of_parts(
    rule: Rule, edges: Edges, fanouts: list[int]
) -> None:
    seeds = np.random.default_rng(0).choice(NUM_NODES, 20, replace=False)
    batches = []
    for num_parts in (1, 2, 4, 7):
        whole = homogeneous(edges, num_parts)
        for stitched in (False, True):
            for dense_limit in (0, NUM_NODES):
                with_table = sampler(whole, stitched=stitched, rule=rule, dense_limit=dense_limit)
                with_table.sample(np.arange(9), [9, 9], KEY)  # a table used before
                out = with_table.sample(whole.new_ids["node"][seeds], fanouts, KEY)
                check_counts(out, 20, len(fanouts))
                check_edges(out, whole, edges)
                batches.append(by_original(out, whole))
    assert all(batch == batches[0] for batch in batches)
    assert sum(batches[0][5]) > 20  # type: ignore[call-overload]


def check_edges(out: Sampled, whole: Cut, edges: Edges) -> None:
    """Edge ids say which edges they are."""
    assert out.edge is not None
    src = np.concatenate([part.indices for part in whole.parts[NODE_TO_NODE]])
    dst = np.concatenate(
        [
            part.first_node + np.repeat(np.arange(len(part.originals)), np.diff(part.indptr))
            for part in whole.parts[NODE_TO_NODE]
        ]
    )
    assert np.array_equal(src[out.edge], out.node[out.row])
    assert np.array_equal(dst[out.edge], out.node[out.col])


def test_another_batch_has_other_neighbours() -> None:
    whole = homogeneous(PLAIN, 1)
    one = sampler(whole)
    keys = [BatchKey(0, 0, 0), BatchKey(1, 0, 0), BatchKey(0, 1, 0), BatchKey(0, 0, 1)]
    batches = [one.sample(np.arange(20), [5], key).node.tolist() for key in keys]
    assert all(a != b for i, a in enumerate(batches) for b in batches[:i])


def test_with_all_neighbours_a_batch_is_the_neighbourhood() -> None:
    whole = homogeneous(PLAIN, 2)
    seeds = np.array([290, 17, 250])
    out = sampler(whole).sample(whole.new_ids["node"][seeds], [-1, -1], KEY)
    expanded: set[int] = set()
    reached, expected = set(seeds.tolist()), []
    for _ in range(2):
        inner = np.isin(PLAIN.dst, list(reached - expanded))
        expected += list(zip(PLAIN.src[inner], PLAIN.dst[inner], strict=True))
        expanded |= reached
        reached |= set(PLAIN.src[inner].tolist())
    ids = whole.originals["node"][out.node]
    assert set(ids.tolist()) == reached
    assert len(ids) == len(reached)
    assert sorted(zip(ids[out.row], ids[out.col], strict=True)) == sorted(expected)


def test_a_repeated_seed_has_several_rows() -> None:
    whole = homogeneous(PLAIN, 1)
    out = sampler(whole).sample(np.array([5, 5, 0]), [3], KEY)
    assert out.node[:3].tolist() == [5, 5, 0]
    neighbours = [out.node[out.row[out.col == row]].tolist() for row in range(3)]
    assert neighbours[0] == neighbours[1]
    assert len(neighbours[0]) == 3
    assert 1 not in out.row


def test_no_tree_meets_what_came_after_its_seed() -> None:
    whole = homogeneous(dataclasses.replace(EDGES, weights=None), 2)
    seeds = np.arange(30)
    times = np.random.default_rng(0).integers(0, 100, 30)
    for rule in (Rule(disjoint=True), Rule(disjoint=True, last=True)):
        out = sampler(whole, rule=rule).sample(seeds, [5, 5], KEY, times)
        assert out.tree is not None
        assert out.edge is not None
        edge_times = np.concatenate([part.times for part in whole.parts[NODE_TO_NODE]])
        assert np.all(edge_times[out.edge] <= times[out.tree[out.col]])
        assert np.array_equal(out.tree[out.row], out.tree[out.col])
        assert len(np.unique(out.tree * NUM_NODES + out.node)) == len(out.node)
        assert out.tree[:30].tolist() == list(range(30))
        check_counts(out, 30, 2)


def hetero_by_original(out: HeteroSampled, whole: Cut) -> list[object]:
    return [
        {name: whole.originals[name][ids].tolist() for name, ids in out.node.items()},
        {e: rows.tolist() for e, rows in out.row.items()},
        {e: cols.tolist() for e, cols in out.col.items()},
        None if out.tree is None else {name: ids.tolist() for name, ids in out.tree.items()},
        out.num_sampled_nodes,
        out.num_sampled_edges,
    ]


FANOUTS: list[Sequence[int] | dict[EdgeType, Sequence[int]]] = [
    [3, 2],
    [-1, -1],
    {WRITES: [2, 2], CITES: [3, 0], WRITTEN: [-1, 4], ABOUT: [0, 0]},
]


@pytest.mark.parametrize("rule", [Rule(), Rule(disjoint=True), Rule(labor=True)])
@pytest.mark.parametrize("fanouts", FANOUTS)
def test_a_batch_of_several_types(
    rule: Rule, fanouts: Sequence[int] | dict[EdgeType, Sequence[int]]
) -> None:
    seeds = {"paper": np.array([3, 77, 120]), "field": np.array([4])}
    batches = []
    for num_parts in (1, 3):
        whole = cut(TYPES, RELATIONS, num_parts, seed=num_parts)
        new_seeds = {name: whole.new_ids[name][ids] for name, ids in seeds.items()}
        for stitched in (False, True):
            out = sampler(whole, stitched=stitched, rule=rule).sample_hetero(
                new_seeds, fanouts, KEY
            )
            batches.append(hetero_by_original(out, whole))
    assert all(batch == batches[0] for batch in batches)
    whole = cut(TYPES, RELATIONS, 1, seed=1)
    new_seeds = {name: whole.new_ids[name][ids] for name, ids in seeds.items()}
    out = sampler(whole, rule=rule).sample_hetero(new_seeds, fanouts, KEY)
    assert hetero_by_original(out, whole) == batches[0]
    if not rule.disjoint:
        assert hetero_by_original(out, whole)[:3] == twin(whole, new_seeds, fanouts, rule)


def twin(
    whole: Cut,
    seeds: dict[str, np.ndarray],
    fanouts: Sequence[int] | dict[EdgeType, Sequence[int]],
    rule: Rule,
) -> list[object]:
    """The loop with dictionaries, hop by hop and edge type by edge type."""
    from headrace.graph.sampling.hop import HopRequest, hop_key

    nodes = {name: seeds.get(name, np.empty(0)).astype(int).tolist() for name in TYPES}
    begin, end = dict.fromkeys(TYPES, 0), {name: len(ids) for name, ids in nodes.items()}
    row: dict[EdgeType, list[int]] = {e: [] for e in RELATIONS}
    col: dict[EdgeType, list[int]] = {e: [] for e in RELATIONS}
    for hop in range(2):
        for e in RELATIONS:
            fanout = (fanouts[e] if isinstance(fanouts, dict) else fanouts)[hop]
            for dst in range(begin[e[2]], end[e[2]]):
                if fanout == 0:
                    continue
                node = np.array([nodes[e[2]][dst]])
                name = (e[0], "", "") if rule.labor else e
                key = hop_key(KEY.seed, KEY.epoch, KEY.batch, hop, name)
                request = HopRequest(e, node, fanout, key, rule)
                for neighbour in LocalSource(whole.parts).hop(request).neighbours.tolist():
                    if neighbour not in nodes[e[0]]:
                        nodes[e[0]].append(neighbour)
                    row[e].append(nodes[e[0]].index(neighbour))
                    col[e].append(dst)
        begin, end = end, {name: len(ids) for name, ids in nodes.items()}
    return [{name: whole.originals[name][ids].tolist() for name, ids in nodes.items()}, row, col]


@pytest.mark.parametrize(
    ("seeds", "fanouts", "words"),
    [
        ([0, NUM_NODES], [2], "seeds are new ids"),
        ([-1], [2], "seeds are new ids"),
        ([0], [2, -2], "or -1 for all"),
    ],
)
def test_what_makes_no_sense_is_refused(seeds: list[int], fanouts: list[int], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        sampler(homogeneous(PLAIN, 1)).sample(np.array(seeds), fanouts, KEY)


def test_wrong_times_and_types_are_refused() -> None:
    whole = homogeneous(PLAIN, 1)
    one, zero = np.ones(1, np.int64), np.zeros(1, np.int64)
    with pytest.raises(SpecError, match="disjoint=True"):
        sampler(whole).sample(zero, [2], KEY, one)
    with pytest.raises(SpecError, match="one time per seed"):
        sampler(whole, rule=Rule(disjoint=True)).sample(zero, [2], KEY, np.ones(2))
    with pytest.raises(SpecError, match="the graph has only"):
        sampler(whole).sample_hetero({"node": zero}, {CITES: [2]}, KEY)


def test_layers_can_be_trimmed() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("torch_geometric")
    from torch_geometric.nn import GraphSAGE

    whole = homogeneous(PLAIN, 2)
    out = sampler(whole).sample(np.arange(16), [5, 4, 3], KEY)
    torch.manual_seed(0)
    model = GraphSAGE(8, 16, 3, 4)
    x = torch.randn(NUM_NODES, 8)[torch.from_numpy(out.node)]
    edge_index = torch.from_numpy(np.stack([out.row, out.col]))
    full = model(x, edge_index)[:16]
    trimmed = model(
        x,
        edge_index,
        num_sampled_nodes_per_hop=out.num_sampled_nodes,
        num_sampled_edges_per_hop=out.num_sampled_edges,
    )[:16]
    torch.testing.assert_close(full, trimmed)
