"""Graphs to cut in tests."""

from __future__ import annotations

import numpy as np

from headrace.graph.adjacency import Adjacency
from headrace.graph.partitioners._base import Constraint, Question


def adjacency_of(src: np.ndarray, dst: np.ndarray, num_nodes: int) -> Adjacency:
    """Neighbours from both sides, once each, without loops; no weights."""
    loops = src == dst
    src, dst = src[~loops].astype(np.int64), dst[~loops].astype(np.int64)
    keys = np.concatenate((src * num_nodes + dst, dst * num_nodes + src))
    keys.sort()
    keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))] if len(keys) else keys
    degrees = np.bincount(keys // num_nodes, minlength=num_nodes)
    indptr = np.concatenate(([0], np.cumsum(degrees))).astype(np.int64)
    return Adjacency(indptr, (keys % num_nodes).astype(np.int32))


def community_graph(
    num_nodes: int, num_edges: int, community_size: int = 1000, mixing: float = 0.15, seed: int = 0
) -> tuple[Adjacency, np.ndarray]:
    """Planted communities with power-law degrees, and training nodes that are not spread evenly.

    Returns:
        The graph and, per node, whether it is a training node (`uint8`).
    """
    rng = np.random.default_rng(seed)
    num_communities = max(1, num_nodes // community_size)
    names = rng.permutation(num_nodes)
    community = rng.integers(num_communities, size=num_edges)
    other = rng.integers(num_communities, size=num_edges)
    other = np.where(rng.random(num_edges) < mixing, other, community)
    # A power of a uniform number prefers low ranks, which makes the degrees a power law.
    ranks = (community_size * rng.random((2, num_edges)) ** 2).astype(np.int64)
    src = (community + ranks[0] * num_communities) % num_nodes
    dst = (other + ranks[1] * num_communities) % num_nodes
    train_rate = rng.random(num_communities) * 0.2
    train = np.zeros(num_nodes, np.uint8)
    train[names] = rng.random(num_nodes) < train_rate[np.arange(num_nodes) % num_communities]
    return adjacency_of(names[src], names[dst], num_nodes), train


def question_of(
    adjacency: Adjacency,
    train: np.ndarray | None,
    shares: int | list[float],
    seed: int = 0,
    tolerance: float = 0.05,
) -> Question:
    """Nodes, edges and training nodes in equal or given shares."""
    edges = np.diff(adjacency.indptr).astype(np.int32)
    constraints = [Constraint("nodes"), Constraint("edges", edges)]
    if train is not None:
        constraints.append(Constraint("train", train))
    share = np.full(shares, 1 / shares) if isinstance(shares, int) else np.array(shares)
    return Question(adjacency, share, tuple(constraints), tolerance, seed)


def loads_of(question: Question, parts: np.ndarray) -> np.ndarray:
    """Load by constraint and part."""
    return np.array(
        [
            np.bincount(parts, question.weights(c), minlength=question.num_parts)
            for c in range(len(question.constraints))
        ]
    )


def cut_of(adjacency: Adjacency, parts: np.ndarray) -> int:
    """Weight of the arcs between parts."""
    src = np.repeat(np.arange(adjacency.num_nodes), np.diff(adjacency.indptr))
    between = parts[src] != parts[adjacency.indices]
    return int(between.sum() if adjacency.weights is None else adjacency.weights[between].sum())


def remote_of(adjacency: Adjacency, parts: np.ndarray, num_parts: int) -> np.ndarray:
    """Distinct remote neighbours of every part."""
    src = np.repeat(np.arange(adjacency.num_nodes), np.diff(adjacency.indptr))
    between = parts[src] != parts[adjacency.indices]
    pairs = np.unique(
        parts[src[between]] * np.int64(adjacency.num_nodes) + adjacency.indices[between]
    )
    return np.bincount(pairs // adjacency.num_nodes, minlength=num_parts)
