"""Vertex covers: every edge has an end in them, and there are as many nodes as matched edges."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from headrace.graph.kernels.vertex_cover import cover


@pytest.mark.parametrize("seed", range(40))
def test_covers_are_minimum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_left, num_right = rng.integers(1, 40, 2)
    num_edges = int(rng.integers(0, 3 * (num_left + num_right)))
    # Some nodes have many edges, as in real graphs.
    left = (num_left * rng.random(num_edges) ** 2).astype(int)
    right = rng.integers(0, num_right, num_edges)
    left.sort()
    indptr = np.searchsorted(left, np.arange(num_left + 1))
    is_left, is_right = cover(indptr, right, num_right)
    assert (is_left[left] | is_right[right]).all()
    edges = csr_array((np.ones(num_edges), (left, right)), (num_left, num_right))
    matched = (maximum_bipartite_matching(edges) >= 0).sum()
    assert is_left.sum() + is_right.sum() == matched
