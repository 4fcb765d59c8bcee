"""How good a cut is."""

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
    """Figures of a cut; smaller is better throughout.

    Attributes:
        edge_cut: Share of the edges, by weight, that join two parts.
        volume: Remote neighbours of all parts: the nodes that a layer over the whole graph fetches.
        remote: Distinct remote neighbours of every part.
        imbalance: The largest of them over their mean, each relative to its part's share.
        balance: By constraint, the largest load of a part over its share.
        remote_by_hop: Share of remote nodes among those drawn one hop and two hops from a training
            seed, estimated by walks.
        remote_fraction: The same over all nodes drawn with a fan-out of 15 and 10: how much of a
            sampled batch, seeds and repetitions apart, comes from other parts.
    """

    edge_cut: float
    volume: int
    remote: tuple[int, ...]
    imbalance: float
    balance: dict[str, float]
    remote_by_hop: tuple[float, float]
    remote_fraction: float


def measure(question: Question, parts: np.ndarray) -> Quality:
    """Measure a cut in time linear in the arcs.

    Args:
        question: What was to be cut and balanced.
        parts: The part of every node.
    """
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
    """Share of remote nodes at each hop from training nodes, or from all if there are none."""
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
