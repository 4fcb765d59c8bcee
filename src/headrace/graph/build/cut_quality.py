"""Quality metrics of a partitioning."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.graph.kernels.quality import count_cut, count_remote_in_order, walk
from headrace.graph.partitioners._base import Question
from headrace.graph.partitioners.rebalance import load_parts

_FANOUT = (15, 10)
_NUM_SEEDS, _NUM_WALKS = 20_000, 16


@dataclass(frozen=True)
class Quality:
    """Quality metrics of a partitioning; smaller is better.

    Attributes:
        edge_cut: Fraction of the edges, by weight, between partitions.
        volume: Total remote neighbours: nodes fetched by one full-graph layer.
        remote: Distinct remote neighbours of every partition.
        imbalance: Largest number of remote neighbours over the mean, relative to the shares.
        balance: Largest load of a partition over its share, by constraint.
        remote_by_hop: Fraction of remote nodes among those sampled one and two hops from a training
            seed, estimated by random walks.
        remote_fraction: Fraction of remote nodes in a batch sampled with fan-out (15, 10), without
            seeds and with duplicates.
    """

    edge_cut: float
    volume: int
    remote: tuple[int, ...]
    imbalance: float
    balance: dict[str, float]
    remote_by_hop: tuple[float, float]
    remote_fraction: float


def measure(question: Question, parts: np.ndarray) -> Quality:
    """Measure a partitioning in time linear in the arcs."""
    adjacency, num_parts = question.adjacency, question.num_parts
    graph = (adjacency.indptr, adjacency.indices)
    parts = parts.astype(np.int32, copy=False)
    total_weight = (
        adjacency.num_arcs
        if adjacency.weights is None
        else int(adjacency.weights.sum(dtype=np.int64))
    )
    remote = count_remote_in_order(np.argsort(parts, kind="stable"), *graph, parts, num_parts)
    volume = int(remote.sum())
    hops = _walk(question, parts)
    drawn = np.cumprod(_FANOUT)
    return Quality(
        edge_cut=float(count_cut(*graph, adjacency.weights, parts) / max(1, total_weight)),
        volume=volume,
        remote=tuple(remote.tolist()),
        imbalance=float((remote / question.shares).max() / volume) if volume else 1.0,
        balance=_balance(question, parts),
        remote_by_hop=(float(hops[0]), float(hops[1])),
        remote_fraction=float(hops @ drawn / drawn.sum()),
    )


def _balance(question: Question, parts: np.ndarray) -> dict[str, float]:
    found = {}
    for c, constraint in enumerate(question.constraints):
        loads = load_parts(question.weights(c)[None], parts, question.num_parts)[0]
        shares = loads.sum() * question.shares
        found[constraint.name] = float((loads / shares).max()) if loads.any() else 1.0
    return found


def _walk(question: Question, parts: np.ndarray) -> np.ndarray:
    """Fraction of remote nodes per hop from training nodes, or from all nodes if there are none."""
    is_seed = np.zeros(question.adjacency.num_nodes, bool)
    for c, constraint in enumerate(question.constraints):
        if constraint.name.split()[0] == "train":
            is_seed |= question.weights(c) > 0
    seeds = np.flatnonzero(is_seed) if is_seed.any() else np.arange(len(is_seed))
    rng = np.random.default_rng(question.seed)
    if len(seeds) > _NUM_SEEDS:
        seeds = np.sort(rng.choice(seeds, _NUM_SEEDS, replace=False))
    draws = rng.random((len(seeds), _NUM_WALKS, len(_FANOUT)))
    shares: np.ndarray = walk(
        seeds, draws, question.adjacency.indptr, question.adjacency.indices, parts
    )
    return shares
