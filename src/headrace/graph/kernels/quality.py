"""Kernels that measure the quality of a partitioning."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def count_cut(indptr, indices, arc_weights, parts):
    """Weight of all arcs between partitions; every pair counts twice."""
    cut = 0
    for node in range(len(parts)):
        for arc in range(indptr[node], indptr[node + 1]):
            if parts[indices[arc]] != parts[node]:
                cut += 1 if arc_weights is None else arc_weights[arc]
    return cut


@njit(cache=True)
def count_remote_in_order(order, indptr, indices, parts, num_parts):
    """Distinct remote neighbours of every partition; `order` lists all nodes by partition."""
    remote = np.zeros(num_parts, np.int64)
    # Nodes are ordered by partition, so one stamp per node replaces a bit per node and partition.
    stamps = np.full(len(parts), -1, np.int32)
    for node in order:
        part = parts[node]
        for arc in range(indptr[node], indptr[node + 1]):
            other = indices[arc]
            if parts[other] != part and stamps[other] != part:
                stamps[other] = part
                remote[part] += 1
    return remote


@njit(cache=True)
def walk(seeds, draws, indptr, indices, parts):
    """Fraction of remote nodes after each step of random walks, over all seeds with neighbours.

    `draws` holds numbers in [0, 1), by seed, walk and step.
    """
    num_steps = draws.shape[2]
    remote, total = np.zeros(num_steps, np.int64), np.zeros(num_steps, np.int64)
    for s in range(len(seeds)):
        for w in range(draws.shape[1]):
            node = seeds[s]
            for step in range(num_steps):
                degree = indptr[node + 1] - indptr[node]
                if degree == 0:
                    break
                node = indices[indptr[node] + np.int64(draws[s, w, step] * degree)]
                total[step] += 1
                remote[step] += parts[node] != parts[seeds[s]]
    return remote / np.maximum(total, 1)
