"""Second-level clusters within every partition, one per sampler of a machine (DistDGLv2, 5.3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headrace.graph.adjacency import Adjacency
from headrace.graph.kernels.subgraph import induce
from headrace.graph.partitioners._base import Constraint, Partitioner, Question
from headrace.graph.partitioners.rebalance import repair


def second_level(
    question: Question, parts: np.ndarray, num_clusters: int, partitioner: Partitioner
) -> np.ndarray:
    """Split every partition into clusters of equal size with few edges between them.

    Partitions are processed one by one, which bounds memory by the largest. The constraints of the
    whole graph are balanced within each partition. Returns the cluster of every node within its
    partition, `int32`.
    """
    clusters = np.zeros(len(parts), np.int32)
    if num_clusters == 1:
        return clusters
    shares = np.full(num_clusters, 1 / num_clusters)
    for part in range(question.num_parts):
        nodes = np.flatnonzero(parts == part)
        if len(nodes) <= num_clusters:
            clusters[nodes] = np.arange(len(nodes))
            continue
        inner = replace(
            question,
            adjacency=induced_subgraph(question.adjacency, nodes),
            shares=shares,
            constraints=tuple(_restrict(constraint, nodes) for constraint in question.constraints),
        )
        clusters[nodes] = repair(inner, partitioner.assign(inner, lambda step: None))
    return clusters


def induced_subgraph(adjacency: Adjacency, nodes: np.ndarray) -> Adjacency:
    """The subgraph induced by some nodes, in ascending order."""
    local = np.full(adjacency.num_nodes, -1, np.int32)
    local[nodes] = np.arange(len(nodes), dtype=np.int32)
    return Adjacency(*induce(nodes, local, adjacency.indptr, adjacency.indices, adjacency.weights))


def _restrict(constraint: Constraint, nodes: np.ndarray) -> Constraint:
    if constraint.weights is None:
        return constraint
    return replace(constraint, weights=constraint.weights[nodes])
