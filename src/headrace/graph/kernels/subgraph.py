"""Induced subgraphs."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def induce(nodes, local, indptr, indices, arc_weights):
    """Arcs among the given nodes, renumbered by `local`, which is negative for all others."""
    new_indptr = np.zeros(len(nodes) + 1, np.int64)
    for i in range(len(nodes)):
        kept = 0
        for arc in range(indptr[nodes[i]], indptr[nodes[i] + 1]):
            if local[indices[arc]] >= 0:
                kept += 1
        new_indptr[i + 1] = new_indptr[i] + kept
    new_indices = np.empty(new_indptr[-1], np.int32)
    new_weights = None if arc_weights is None else np.empty(new_indptr[-1], np.int32)
    slot = 0
    for node in nodes:
        for arc in range(indptr[node], indptr[node + 1]):
            other = local[indices[arc]]
            if other >= 0:
                new_indices[slot] = other
                if arc_weights is not None:
                    new_weights[slot] = arc_weights[arc]
                slot += 1
    return new_indptr, new_indices, new_weights
