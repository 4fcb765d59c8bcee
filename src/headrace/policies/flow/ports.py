"""`maxmin` and `priority` at the grain of machine pairs, for the fast kernel.

All flows of one machine pair (for `priority`: of the pair's first class) have one rate under these rules, and that
rate is the level of one port, the pair's bottleneck. So a decision is a level per port and a bottleneck per pair.
Port a is machine a's outgoing NIC, port M + b machine b's incoming one. `STARVED` pairs get nothing.

`counts[a, b]` is the number of flows from a to b that take part; `counts_t` is its transpose, kept beside it so that
a port's pairs are contiguous on both sides. A pass does not return all bottlenecks but only the pairs whose
bottleneck is not the one in `bottleneck`: in most passes there are few.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.policies.compiled import hot, hot_loop

STARVED = -1


@njit(cache=True, error_model="numpy", _nrt=False, forceinline=True, fastmath=True)
def smallest(values):  # type: ignore[no-untyped-def]
    """The smallest value; written so that LLVM vectorises it."""
    best = np.inf
    for i in range(len(values)):
        best = min(best, values[i])
    return best


@hot
def _freeze(rate, row, open_, left, degree, share):  # type: ignore[no-untyped-def]
    """A port is full: take its pairs' rates off the ports at their other ends."""
    for x in range(len(row)):
        frozen = row[x] * open_[x]
        rest = left[x] - rate * frozen
        left[x] = rest if rest > 0.0 else 0.0
        degree[x] -= frozen
        quotient = left[x] / degree[x]
        share[x] = quotient if degree[x] * open_[x] > 0.5 else np.inf


@hot
def _note_moves(full, row, open_, bottleneck, moves, num_moves):  # type: ignore[no-untyped-def]
    """List the pairs just frozen at a full port that had another bottleneck before."""
    num_machines = len(row)
    if full < num_machines:
        for x in range(num_machines):
            if row[x] * open_[x] > 0.0 and bottleneck[full, x] != full:
                moves[num_moves, 0] = full * num_machines + x
                moves[num_moves, 1] = full
                num_moves += 1
    else:
        for x in range(num_machines):
            if row[x] * open_[x] > 0.0 and bottleneck[x, full - num_machines] != full:
                moves[num_moves, 0] = x * num_machines + full - num_machines
                moves[num_moves, 1] = full
                num_moves += 1
    return num_moves


@hot
def _find(values, value):  # type: ignore[no-untyped-def]
    at = 0
    while values[at] != value:
        at += 1
    return at


@hot_loop
def fill_pairs(counts, counts_t, left, degree, open_, share, level, bottleneck, moves):  # type: ignore[no-untyped-def]
    """Max-min over all pairs by progressive filling.

    Args:
        counts: Flows per pair, shape (M, M), float.
        counts_t: Its transpose, contiguous.
        left: Capacity per port, 2M; used up.
        degree: Flows per port, 2M; used up.
        open_: Scratch of 2M.
        share: Scratch of 2M.
        level: Filled with the level of every full port, 0 for the others.
        bottleneck: Bottleneck per pair so far, shape (M, M).
        moves: Filled with rows (pair, new bottleneck).

    Returns:
        Number of moves.
    """
    num = len(counts)
    for p in range(2 * num):
        open_[p] = 1.0
        level[p] = 0.0
        share[p] = left[p] / degree[p] if degree[p] > 0.5 else np.inf
    num_moves = 0
    while True:
        rate = smallest(share)
        if rate == np.inf:
            return num_moves
        full = _find(share, rate)
        level[full] = rate
        open_[full] = 0.0
        share[full] = np.inf
        if full < num:
            row = counts[full]
            _freeze(rate, row, open_[num:], left[num:], degree[num:], share[num:])
            num_moves = _note_moves(full, row, open_[num:], bottleneck, moves, num_moves)
        else:
            row = counts_t[full - num]
            _freeze(rate, row, open_[:num], left[:num], degree[:num], share[:num])
            num_moves = _note_moves(full, row, open_[:num], bottleneck, moves, num_moves)
