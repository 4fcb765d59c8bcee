"""The second stage of G3: balance communication between partitions.

A partitioner minimises the total cut, but the partition with most remote neighbours slows down all
others. This stage moves single nodes, or swaps two, until no partition has many more remote
neighbours than the mean.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.graph.kernels.communication import count_neighbours, count_remote, sweep
from headrace.graph.kernels.quality import count_cut
from headrace.graph.partitioners._base import Question
from headrace.graph.partitioners.rebalance import load_parts, stack_weights, tight_caps

_WORK_ARCS = 60_000_000
"""Sweeps are repeated until this many arcs were visited (about 8 s), within the bounds below."""

_FEWEST_SWEEPS, _MOST_SWEEPS = 10, 400
_ANNEALED_ARCS = 5_000_000
"""Largest graph that uses simulated annealing. On real graphs of this size it halves the imbalance
that greedy moves leave."""

_FIRST_PENALTY, _LAST_PENALTY = 10.0, 300.0
_FIRST_CUT_PRICE, _MOST_CUT_PRICE = 0.1, 3.0


def balance_communication(
    question: Question,
    parts: np.ndarray,
    most: float = 1.03,
    extra: float = 0.02,
    extra_cut: float = 0.03,
) -> np.ndarray:
    """Move and swap nodes until all partitions have about the same number of remote neighbours.

    With unequal shares, the number is taken relative to the partition's share. Caps that were met
    stay met. A move takes time linear in the node's degree.

    Args:
        question: The partitioning problem.
        parts: Partition of every node.
        most: Target ratio of the largest number to the mean.
        extra: Allowed relative increase of the total.
        extra_cut: Allowed relative increase of the cut.

    Returns:
        New partition of every node, `int32`: of all states within the limits the one with the least
        imbalance, or the least total among those that meet the target.
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
    # Greedy moves affect only partitions above the aim; an aim near the mean includes most nodes.
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
        # Raise the price of the cut while the cut is above its limit, otherwise lower it.
        cut_price = min(_MOST_CUT_PRICE, cut_price * (1.1 if cut > most_cut else 0.95))
        score = _score(question, remote, most)
        if score < best_score and cut <= most_cut and remote.sum() <= most_volume:
            best, best_score = parts.copy(), score
        if num_moved == 0 and not anneal:
            break
    return best


def _score(question: Question, remote: np.ndarray, most: float) -> tuple[float, int]:
    """Imbalance, clipped below at `most`, then the total."""
    total = int(remote.sum())
    ratio = float((remote / question.shares).max()) / max(1, total)
    return max(most, ratio), total
