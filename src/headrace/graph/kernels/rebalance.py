"""Sweeps that move nodes between partitions.

Loads, caps and limits have shape (constraints, partitions); node weights have shape (constraints,
nodes). Arc weights are `None` if every arc weighs one.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def connect(node, indptr, indices, arc_weights, parts, strength, near):
    """Sum a node's arc weights by partition into `strength`; list these partitions in `near`."""
    num_near = 0
    for arc in range(indptr[node], indptr[node + 1]):
        part = parts[indices[arc]]
        if strength[part] == 0:
            near[num_near] = part
            num_near += 1
        if arc_weights is None:
            strength[part] += 1
        else:
            strength[part] += arc_weights[arc]
    return num_near


@njit(cache=True)
def fits(node, part, node_weights, loads, caps):
    """Whether a partition stays within all caps after adding a node."""
    for c in range(len(loads)):
        weight = node_weights[c, node]
        if weight > 0 and loads[c, part] + weight > caps[c, part]:
            return False
    return True


@njit(cache=True)
def shift(node, source, target, node_weights, loads):
    """Move a node's weights from one partition's loads to another's."""
    for c in range(len(loads)):
        loads[c, source] -= node_weights[c, node]
        loads[c, target] += node_weights[c, node]


@njit(cache=True)
def relief(node, source, target, node_weights, loads, limits, spans):
    """Decrease of the sum of squared excess loads by a move; squares favour the highest loads."""
    total = 0.0
    for c in range(len(loads)):
        weight = node_weights[c, node]
        if weight > 0:
            before = max(0.0, (loads[c, source] - limits[c, source]) / spans[c, source])
            after = max(0.0, (loads[c, source] - weight - limits[c, source]) / spans[c, source])
            total += before * before - after * after
            before = max(0.0, (loads[c, target] - limits[c, target]) / spans[c, target])
            after = max(0.0, (loads[c, target] + weight - limits[c, target]) / spans[c, target])
            total += before * before - after * after
    return total


@njit(cache=True)
def concerns(node, part, node_weights, loads, bounds):
    """Whether a node contributes to a constraint that its partition exceeds."""
    for c in range(len(loads)):
        if node_weights[c, node] > 0 and loads[c, part] > bounds[c, part]:
            return True
    return False


@njit(cache=True)
def best_relief(node, source, node_weights, loads, limits, spans, strength, near, num_near):
    """Target with the least cut increase per relief; returns target, score and relief.

    Partitions without a neighbour of the node are tried only if no adjacent partition gives relief.
    """
    best, best_score, best_relieved = -1, np.inf, 0.0
    for i in range(num_near):
        target = near[i]
        if target != source:
            relieved = relief(node, source, target, node_weights, loads, limits, spans)
            if relieved > 1e-12:
                loss = strength[source] - strength[target]
                score = loss / relieved if loss > 0 else float(loss)
                if score < best_score or (score == best_score and target < best):
                    best, best_score, best_relieved = target, score, relieved
    if best < 0:
        for target in range(loads.shape[1]):
            if target != source:
                relieved = relief(node, source, target, node_weights, loads, limits, spans)
                if relieved > 1e-12 and relieved > best_relieved:
                    best, best_relieved = target, relieved
                    best_score = strength[source] / relieved
    return best, best_score, best_relieved


@njit(cache=True)
def rank(indptr, indices, arc_weights, node_weights, parts, loads, bounds, limits, spans):
    """Score of every node that could leave a partition above its bounds; infinite for others."""
    num_parts = loads.shape[1]
    scores = np.full(len(parts), np.inf, np.float32)
    strength, near = np.zeros(num_parts, np.int64), np.empty(num_parts, np.int64)
    for node in range(len(parts)):
        source = parts[node]
        if concerns(node, source, node_weights, loads, bounds):
            num_near = connect(node, indptr, indices, arc_weights, parts, strength, near)
            _, scores[node], _ = best_relief(
                node, source, node_weights, loads, limits, spans, strength, near, num_near
            )
            strength[near[:num_near]] = 0
    return scores


@njit(cache=True)
def relieve(order, indptr, indices, arc_weights, node_weights, parts, loads, bounds, limits, spans):
    """Move nodes, in the given order, out of partitions above their bounds; returns the number.

    Updates `parts` and `loads`.
    """
    num_parts = loads.shape[1]
    strength, near = np.zeros(num_parts, np.int64), np.empty(num_parts, np.int64)
    num_moved = 0
    for node in order:
        source = parts[node]
        if concerns(node, source, node_weights, loads, bounds):
            num_near = connect(node, indptr, indices, arc_weights, parts, strength, near)
            target, _, _ = best_relief(
                node, source, node_weights, loads, limits, spans, strength, near, num_near
            )
            strength[near[:num_near]] = 0
            if target >= 0:
                shift(node, source, target, node_weights, loads)
                parts[node] = target
                num_moved += 1
    return num_moved


@njit(cache=True)
def refine(indptr, indices, arc_weights, node_weights, parts, loads, caps):
    """Move every node to its most strongly connected partition if that lowers the cut within caps.

    Updates `parts` and `loads`. Returns the decrease of the cut, and the cut as seen when each node
    was visited; both count every pair twice.
    """
    num_parts = loads.shape[1]
    strength, near = np.zeros(num_parts, np.int64), np.empty(num_parts, np.int64)
    gained, cut = 0, 0
    for node in range(len(parts)):
        source = parts[node]
        num_near = connect(node, indptr, indices, arc_weights, parts, strength, near)
        best = source
        for i in range(num_near):
            target = near[i]
            better = strength[target] > strength[best] or (
                strength[target] == strength[best] and best != source and target < best
            )
            if better and fits(node, target, node_weights, loads, caps):
                best = target
        # The first constraint counts nodes: a partition keeps its last node.
        if best != source and loads[0, source] > node_weights[0, node]:
            gained += 2 * (strength[best] - strength[source])
            shift(node, source, best, node_weights, loads)
            parts[node] = best
        for i in range(num_near):
            if near[i] != source:
                cut += strength[near[i]]
            strength[near[i]] = 0
    return gained, cut
