"""The second stage of G3: balance what parts fetch from each other.

A partitioner minimises the cut of the whole graph; how many remote neighbours a single part ends up
with is left to chance, and the part with most of them slows all others down. Single nodes are
moved, or exchanged between two parts, until no part has many more than the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.graph.kernels.communication import count_neighbours, count_remote, sweep
from headrace.graph.kernels.quality import count_cut
from headrace.graph.partitioners._base import Question
from headrace.graph.partitioners.rebalance import load_parts, stack_weights, tight_caps

_WORK_ARCS = 60_000_000
"""Small graphs get more sweeps, as many as look at this many arcs (about 8 s)."""

_FEWEST_SWEEPS, _MOST_SWEEPS = 10, 400
_ANNEALED_ARCS = 5_000_000
"""Up to here bad moves are made by chance, too: on real graphs of this size that finds half of the
imbalance that greedy moves leave."""

_FIRST_PENALTY, _LAST_PENALTY = 10.0, 300.0
_FIRST_CUT_PRICE, _MOST_CUT_PRICE = 0.1, 3.0


def balance_communication(
    question: Question,
    parts: np.ndarray,
    most: float = 1.03,
    extra: float = 0.02,
    extra_cut: float = 0.03,
) -> np.ndarray:
    """Move and exchange nodes until all parts have about the same number of remote neighbours.

    With unequal shares a part's number is seen relative to its share. All caps are kept that were
    kept before. A move takes time linear in the node's degree.

    Args:
        question: What was to be cut and balanced.
        parts: The part of every node.
        most: Good enough: the largest number over the mean.
        extra: How much the total may grow, relatively.
        extra_cut: How much the cut may grow, relatively.

    Returns:
        The new part of every node, `int32`: of all states seen within the limits, the one with the
        least imbalance, or the least total among those that are good enough.
    """
    parts = parts.astype(np.int32)
    num_parts, arcs = question.num_parts, question.adjacency.num_arcs
    if num_parts == 1 or arcs == 0:
        return parts
    graph = (question.adjacency.indptr, question.adjacency.indices, question.adjacency.weights)
    weights = stack_weights(question)
    loads = load_parts(weights, parts, num_parts)
    caps = np.maximum(tight_caps(question, loads), loads)
    table = count_neighbours(*graph[:2], parts, num_parts)
    remote = count_remote(parts, num_parts, *table[:3])
    cut = int(count_cut(*graph, parts)) // 2
    most_volume, most_cut = (1 + extra) * remote.sum(), (1 + extra_cut) * cut
    num_sweeps = int(np.clip(_WORK_ARCS // arcs, _FEWEST_SWEEPS, _MOST_SWEEPS))
    anneal = arcs <= _ANNEALED_ARCS
    # Greedy moves touch only parts above the aim: nearer the mean, nearly all nodes would be.
    aim = 1.0 if anneal else 1 + 0.9 * (most - 1)
    cut_price = _FIRST_CUT_PRICE
    state = np.array([2 * question.seed + 1], np.uint64)
    best, best_score = parts.copy(), _score(question, remote, most)
    for step in range(num_sweeps):
        if not anneal and best_score[0] <= most:
            break
        time = step / (num_sweeps - 1)
        penalty = _FIRST_PENALTY * (_LAST_PENALTY / _FIRST_PENALTY) ** time
        limits = np.maximum(aim * remote.sum() * question.shares, 1.0)
        heat = (1 - time) ** 2 if anneal else 0.0
        prices = (limits, penalty, cut_price, heat, anneal, state)
        arguments: tuple[Any, ...] = (*graph, weights, parts, loads, caps, *table, remote, *prices)
        num_moved, growth = sweep(*arguments)
        cut += growth
        # The price of the cut finds itself: up while too much is cut, else down.
        cut_price = min(_MOST_CUT_PRICE, cut_price * (1.1 if cut > most_cut else 0.95))
        score = _score(question, remote, most)
        if score < best_score and cut <= most_cut and remote.sum() <= most_volume:
            best, best_score = parts.copy(), score
        if num_moved == 0 and not anneal:
            break
    return best


def _score(question: Question, remote: np.ndarray, most: float) -> tuple[float, int]:
    """Imbalance as far as it is too large, then the total."""
    total = int(remote.sum())
    ratio = float((remote / question.shares).max()) / max(1, total)
    return max(most, ratio), total
