"""Kernels of writing against plain twins."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.graph.build.node_ids import number
from headrace.graph.kernels.writing import copy_lists, copy_renamed, mark
from tests.unit.graph.small_graphs import heterogeneous


@pytest.mark.parametrize("num_clusters", [None, 3])
def test_new_ids_are_ranks_by_part_cluster_and_original_id(num_clusters: int | None) -> None:
    source = heterogeneous()
    rng = np.random.default_rng(1)
    parts = rng.integers(0, 4, source.num_nodes).astype(np.int32)
    clusters = rng.integers(0, num_clusters or 1, source.num_nodes).astype(np.int32)
    found = number(source, parts, clusters if num_clusters else None, 4)
    offsets = source.node_offsets()
    for t, numbering in enumerate(found):
        keys = [(int(parts[v]), int(clusters[v]), v) for v in range(offsets[t], offsets[t + 1])]
        plain = [sorted(keys).index(key) for key in keys]
        assert numbering.new_ids.tolist() == plain
        for part in range(4):
            for cluster in range(num_clusters or 1):
                before = sum(key < (part, cluster, 0) for key in keys)
                assert numbering.bounds[part, cluster] == before
        ends = [sum(key[0] < part for key in keys) for part in range(5)]
        assert numbering.offsets.tolist() == ends


def test_lists_are_copied_in_the_order_of_rows() -> None:
    rng = np.random.default_rng(2)
    indptr = np.cumsum([0, *rng.integers(0, 5, 12)])
    values = rng.integers(0, 9, indptr[-1]).astype(np.int32)
    names = rng.permutation(9).astype(np.int32)
    first, stop = 4, 11
    rows = rng.permutation(stop - first)
    lists = [values[indptr[first + row] : indptr[first + row + 1]] for row in rows]
    plain = np.concatenate(lists)
    part, out = values[indptr[first] : indptr[stop]], np.empty_like(plain)
    copy_lists(indptr, first, part, rows, out)
    np.testing.assert_array_equal(out, plain)
    copy_renamed(indptr, first, part, rows, names, out)
    np.testing.assert_array_equal(out, names[plain])


def test_marks_are_those_of_the_nodes_that_occur() -> None:
    indices = np.array([3, 3, 0], np.int32)
    is_there = np.zeros(5, np.bool_)
    mark(indices, is_there)
    assert is_there.tolist() == [v in indices for v in range(5)]
