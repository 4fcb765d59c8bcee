"""`priority` at the grain of machine pairs: class after class, max-min on what earlier classes left.

A flow without a limit of its own fills one of its ports, so only the first class of a pair ever gets anything:
`counts` and `classes` describe that class alone. See `ports` for the terms.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot, hot_loop
from headrace.policies.flow.ports import STARVED, _find, _freeze, _note_moves, smallest


@hot
def _select(counts, classes, current, row):  # type: ignore[no-untyped-def]
    """Flows of the current class only."""
    for x in range(len(row)):
        row[x] = counts[x] if classes[x] == current else 0.0


@hot_loop
def fill_classes(  # type: ignore[no-untyped-def]
    order,
    num_pairs,
    counts,
    counts_t,
    classes,
    classes_t,
    left,
    degree,
    open_,
    share,
    row,
    level,
    bottleneck,
    moves,
):
    """Share the ports among classes.

    Args:
        order: Pairs with flows, sorted by class.
        num_pairs: How many there are.
        counts: Flows of the first class per pair, shape (M, M), float.
        counts_t: Its transpose, contiguous.
        classes: First class per pair, float, smaller first.
        classes_t: Its transpose, contiguous.
        left: Capacity per port, 2M; used up.
        degree: Scratch of 2M.
        open_: Scratch of 2M.
        share: Scratch of 2M.
        row: Scratch of M.
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
        degree[p] = 0.0
        share[p] = np.inf
    num_moves = 0
    i = 0
    while i < num_pairs:
        current = classes[order[i] // num, order[i] % num]
        while i < num_pairs:
            a, b = order[i] // num, order[i] % num
            if classes[a, b] != current:
                break
            if open_[a] * open_[num + b] > 0.0:
                degree[a] += counts[a, b]
                degree[num + b] += counts[a, b]
            elif bottleneck[a, b] != STARVED:
                moves[num_moves, 0] = order[i]
                moves[num_moves, 1] = STARVED
                num_moves += 1
            i += 1
        for p in range(2 * num):
            quotient = left[p] / degree[p]
            share[p] = quotient if degree[p] > 0.5 else np.inf
        while True:
            rate = smallest(share)
            if rate == np.inf:
                break
            full = _find(share, rate)
            level[full] = rate
            open_[full] = 0.0
            share[full] = np.inf
            degree[full] = 0.0
            if full < num:
                _select(counts[full], classes[full], current, row)
                _freeze(rate, row, open_[num:], left[num:], degree[num:], share[num:])
                num_moves = _note_moves(full, row, open_[num:], bottleneck, moves, num_moves)
            else:
                _select(counts_t[full - num], classes_t[full - num], current, row)
                _freeze(rate, row, open_[:num], left[:num], degree[:num], share[:num])
                num_moves = _note_moves(full, row, open_[:num], bottleneck, moves, num_moves)
    return num_moves
