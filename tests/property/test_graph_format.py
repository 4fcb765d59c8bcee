"""Whatever the graph and its parts: nothing is lost, and seeds are shared fairly."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.format.verify import verify
from headrace.graph.sampler_worker.cluster_seeds import split_seeds
from tests.unit.graph.build.test_node_writer import assert_same
from tests.unit.graph.small_graphs import heterogeneous, homogeneous, write

seeds = st.integers(0, 2**32 - 1)


@given(
    num_nodes=st.integers(1, 40),
    num_edges=st.integers(0, 150),
    part_share=st.floats(0, 1),
    num_clusters=st.one_of(st.none(), st.integers(1, 5)),
    keep_ids=st.booleans(),
    seed=seeds,
)
@settings(max_examples=40)
def test_homogeneous_graphs_come_back(
    num_nodes: int,
    num_edges: int,
    part_share: float,
    num_clusters: int | None,
    keep_ids: bool,
    seed: int,
) -> None:
    source = homogeneous(num_nodes, num_edges, seed, keep_ids)
    num_parts = max(1, int(part_share * min(num_nodes, 12)))
    with tempfile.TemporaryDirectory() as folder:
        write(source, Path(folder), num_parts, num_clusters, seed)
        assert_same(source, open_graph(folder))
        assert verify(folder) == []


@given(num_papers=st.integers(1, 30), num_parts=st.integers(1, 6), seed=seeds)
@settings(max_examples=20)
def test_heterogeneous_graphs_come_back(num_papers: int, num_parts: int, seed: int) -> None:
    source = heterogeneous(seed, num_papers)
    with tempfile.TemporaryDirectory() as folder:
        write(source, Path(folder), num_parts, 2, seed)
        assert_same(source, open_graph(folder))
        assert verify(folder) == []


@given(
    counts=st.lists(st.integers(0, 30), min_size=1, max_size=6),
    samplers=st.lists(st.integers(0, 5), min_size=1, max_size=12),
)
def test_seeds_are_shared_fairly(counts: list[int], samplers: list[int]) -> None:
    samplers = [part % len(counts) for part in samplers]
    ends = np.cumsum(counts)
    # Every third node is a seed.
    parts = [np.arange(e - n, e) * 3 for n, e in zip(counts, ends, strict=True)]
    given_out = split_seeds(parts, samplers)
    sizes = [len(own) for own in given_out]
    assert max(sizes) - min(sizes) <= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(given_out)), np.arange(ends[-1]) * 3)
    num_local = sum(
        int(np.isin(own, parts[part]).sum()) for own, part in zip(given_out, samplers, strict=True)
    )
    assert num_local == most_local(counts, samplers)


def most_local(counts: list[int], samplers: list[int]) -> int:
    """The best of all equal splits: try how many odd seeds each part's samplers get."""
    base, odd = divmod(sum(counts), len(samplers))
    best = {0: 0}
    for part, have in enumerate(counts):
        num = samplers.count(part)
        better: dict[int, int] = {}
        for used, local in best.items():
            for extra in range(min(num, odd - used) + 1):
                more = local + min(have, base * num + extra)
                better[used + extra] = max(better.get(used + extra, 0), more)
        best = better
    return best[odd]
