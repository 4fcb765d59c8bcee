from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampling.hop import Rule
from headrace.graph.sampling.local_edges import node_column
from headrace.graph.sampling.neighbor_sampler import BatchKey
from headrace.graph.schema import Column, GraphSource
from tests.support.local_sampling import local_sampler
from tests.unit.graph.small_graphs import (
    NODE_TO_NODE,
    edge_table,
    endpoints,
    heterogeneous,
    homogeneous,
    write,
)

KEY = BatchKey(1, 2, 3)


def with_times(owner: str) -> GraphSource:
    """The small graph, with times of its nodes or edges."""
    source = homogeneous(num_edges=300)
    (nodes,), (edges,) = source.nodes, source.edges
    if owner == "nodes":
        times = Column.of("time", np.random.default_rng(0).integers(0, 50, nodes.num_nodes))
        nodes = dataclasses.replace(nodes, columns=(*nodes.columns, times))
    else:
        times = Column.of("time", np.random.default_rng(0).integers(0, 50, edges.num_edges))
        edges = edge_table(NODE_TO_NODE, *endpoints(edges), (*edges.columns, times))
    return dataclasses.replace(source, nodes=(nodes,), edges=(edges,))


@pytest.mark.parametrize("weight", [None, "edge_weight"])
def test_a_batch_is_the_same_whatever_the_number_of_files(
    tmp_path: Path, weight: str | None
) -> None:
    source = homogeneous(num_edges=400)
    batches = []
    for num_parts in (1, 2, 4):
        write(source, tmp_path / str(num_parts), num_parts)
        graph = open_graph(tmp_path / str(num_parts))
        seeds = graph.to_new("node", np.array([3, 8, 20]))
        out = local_sampler(graph, weight=weight).sample(seeds, [4, 3], KEY)
        ids = graph.to_original("node", out.node)
        assert out.edge is not None
        kept = [graph.part(p).edge_ids(NODE_TO_NODE) for p in range(num_parts)]
        edges = np.concatenate(kept)[out.edge]  # type: ignore[arg-type]
        src, dst = endpoints(source.edges[0])
        assert np.array_equal(src[edges], ids[out.row])
        assert np.array_equal(dst[edges], ids[out.col])
        batches.append([ids.tolist(), out.row.tolist(), out.col.tolist(), edges.tolist()])
    assert batches[0] == batches[1] == batches[2]


def test_a_batch_of_several_types(tmp_path: Path) -> None:
    source = heterogeneous()
    batches = []
    for num_parts in (1, 3):
        write(source, tmp_path / str(num_parts), num_parts)
        graph = open_graph(tmp_path / str(num_parts))
        seeds = {"venue": graph.to_new("venue", np.array([1, 0]))}
        out = local_sampler(graph).sample_hetero(seeds, [3, 2, 2], KEY)
        batches.append(
            [
                {name: graph.to_original(name, ids).tolist() for name, ids in out.node.items()},
                {e: rows.tolist() for e, rows in out.row.items()},
                {e: cols.tolist() for e, cols in out.col.items()},
                out.num_sampled_nodes,
            ]
        )
    assert batches[0] == batches[1]
    assert len(batches[0][0]["author"]) > 0  # type: ignore[index]


@pytest.mark.parametrize("owner", ["nodes", "edges"])
def test_times_of_nodes_or_edges(tmp_path: Path, owner: str) -> None:
    write(with_times(owner), tmp_path, num_parts=2)
    graph = open_graph(tmp_path)
    seeds, seed_times = np.arange(30), np.arange(30) + 5
    out = local_sampler(graph, Rule(disjoint=True), time="time").sample(
        seeds, [4, 4], KEY, seed_times
    )
    assert out.tree is not None
    assert out.edge is not None
    if owner == "nodes":
        times = node_column(graph, "time")["node"][out.node[out.row]]
    else:
        stored = [graph.part(p).edge_column(NODE_TO_NODE, "time") for p in range(2)]
        times = np.concatenate(stored)[out.edge]
    assert len(times) > 20
    assert np.all(times <= seed_times[out.tree[out.col]])


def test_a_column_that_is_not_there(tmp_path: Path) -> None:
    write(heterogeneous(), tmp_path)
    graph = open_graph(tmp_path)
    with pytest.raises(SpecError, match="no column 'size'"):
        local_sampler(graph, weight="size")
    with pytest.raises(SpecError, match="no column 'date'"):
        local_sampler(graph, time="date")
    with pytest.raises(SpecError, match="one integer per edge"):
        local_sampler(graph, time="time")  # two per edge
