"""One pass of Fennel over a range of nodes."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def stream_nodes(
    indptr, indices, weights, start, stop, node_weights, parts, loads, caps, shares, pull, gains
):
    """Give every node from `start` to `stop` to the part that wants it most and has room.

    A part wants a node for the neighbours it has there, and the less the fuller the part is:
    Fennel's objective with an exponent of 3/2. Other than there, fullness counts in shares of the
    node's own neighbours, so that hubs care for balance as much as others do (measured: up to a
    quarter fewer edges cut). Where no part has room, the node goes where it does least harm.

    Args:
        indptr: Of the whole graph.
        indices: Of the whole graph.
        weights: Of the whole graph; empty if all are one.
        start: First node.
        stop: One after the last.
        node_weights: Of these nodes, by node and constraint.
        parts: Part of every node, -1 if it has none yet; changed.
        loads: By part and constraint; changed.
        caps: By part and constraint.
        shares: What a part should have, by part and constraint.
        pull: What a part that is as full as its share counts for, in shares of the neighbours.
        gains: One number per part; all zero, and so afterwards.
    """
    num_parts, num_constraints = loads.shape
    weighted = len(weights) > 0
    penalties = np.empty(num_parts)
    for p in range(num_parts):
        penalties[p] = _penalty(loads, shares, p, pull)
    for v in range(start, stop):
        own = node_weights[v - start]
        before = parts[v]
        if before >= 0:
            for c in range(num_constraints):
                loads[before, c] -= own[c]
            penalties[before] = _penalty(loads, shares, before, pull)
        strength = 0
        for e in range(indptr[v], indptr[v + 1]):
            weight = weights[e] if weighted else 1
            strength += weight
            p = parts[indices[e]]
            if p >= 0:
                gains[p] += weight

        best, best_score = -1, -np.inf
        for p in range(num_parts):
            score = gains[p] - penalties[p] * max(strength, 1)
            gains[p] = 0
            if score < best_score or (score == best_score and p != before):
                continue
            fits = True
            for c in range(num_constraints):
                if own[c] > 0 and loads[p, c] + own[c] > caps[p, c]:
                    fits = False
                    break
            if fits:
                best, best_score = p, score
        if best < 0:
            best = _least_over(loads, caps, own)
        parts[v] = best
        for c in range(num_constraints):
            loads[best, c] += own[c]
        penalties[best] = _penalty(loads, shares, best, pull)


@njit(cache=True)
def _penalty(loads, shares, p, pull):
    fullness = 0.0
    for c in range(loads.shape[1]):
        fullness = max(fullness, loads[p, c] / shares[p, c])
    return pull * np.sqrt(fullness)


@njit(cache=True)
def _least_over(loads, caps, own):
    # What is over the cap is weighed by how much of it the node would bring: where one part has too
    # many nodes and another too many edges, the first then gives nodes of few edges to the second.
    best, least = 0, np.inf
    for p in range(loads.shape[0]):
        over = 0.0
        for c in range(loads.shape[1]):
            if own[c] > 0:
                load = (loads[p, c] + own[c]) / caps[p, c]
                over += own[c] / caps[p, c] * max(load - 1.0, 0.0)
        if over < least:
            best, least = p, over
    return best
