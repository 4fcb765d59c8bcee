"""Rebalancing after partitioning."""

from __future__ import annotations

import numpy as np

from headrace.graph.kernels.rebalance import rank, refine, relieve
from headrace.graph.partitioners._base import Question

_MOST_SWEEPS = 20
_REFINEMENTS = 8
_LEAST_GAIN = 1e-3
"""Refinement ends when a sweep lowers the cut by less than this fraction."""


def repair(question: Question, parts: np.ndarray) -> np.ndarray:
    """Move nodes until every partition is within the caps of all constraints, then refine the cut.

    Returns the new partition of every node, `int32`. A sweep takes time linear in the arcs. If the
    caps cannot be met, e.g. with fewer training nodes than partitions, the excess is minimised;
    `measure` reports it.
    """
    parts = parts.astype(np.int32)
    if question.num_parts == 1:
        return parts
    graph = (question.adjacency.indptr, question.adjacency.indices, question.adjacency.weights)
    weights = stack_weights(question)
    loads = load_parts(weights, parts, question.num_parts)
    goals = tight_caps(question, loads)
    shares = loads.sum(axis=1)[:, None] * question.shares
    # Limits are below the caps, so that a full partition does not block its neighbours.
    limits = (shares + goals) / 2
    spans = np.maximum(goals - limits, 1e-9)
    for bounds in (goals, limits):
        for _ in range(_MOST_SWEEPS):
            if (loads <= goals).all():
                break
            scores = rank(*graph, weights, parts, loads, bounds, limits, spans)
            candidates = np.flatnonzero(np.isfinite(scores))
            order = candidates[np.argsort(scores[candidates], kind="stable")]
            if relieve(order, *graph, weights, parts, loads, bounds, limits, spans) == 0:
                break
    for _ in range(_REFINEMENTS):
        gained, cut = refine(*graph, weights, parts, loads, np.maximum(goals, loads))
        if gained <= _LEAST_GAIN * cut:
            break
    return parts


def tight_caps(question: Question, loads: np.ndarray) -> np.ndarray:
    """Caps without the allowance for one heavy node; `loads` is (constraints, partitions)."""
    shares = loads.sum(axis=1)[:, None] * question.shares
    tight: np.ndarray = np.maximum(shares * (1 + question.tolerance), shares + 1)
    return tight


def stack_weights(question: Question) -> np.ndarray:
    """Weights of all nodes, by constraint and node, in the narrowest dtype."""
    columns = [question.weights(c) for c in range(len(question.constraints))]
    most = max(int(column.max(initial=0)) for column in columns)
    dtype = np.int32 if most < 2**31 else np.int64
    stacked = np.empty((len(columns), question.adjacency.num_nodes), dtype)
    for c, column in enumerate(columns):
        stacked[c] = column
    return stacked


def load_parts(weights: np.ndarray, parts: np.ndarray, num_parts: int) -> np.ndarray:
    """Load of every partition: `(constraints, partitions)`, `int64`."""
    # bincount sums in float64, which is exact below 2**53.
    loads = [np.bincount(parts, column, minlength=num_parts) for column in weights]
    return np.array(loads).astype(np.int64)
