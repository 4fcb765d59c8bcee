"""`priority` at the grain of machine pairs: class after class, max-min on what earlier classes left.

A flow without a limit of its own fills one of its ports, so only the first class of a pair ever gets anything:
`counts` and `classes` describe that class alone. See `ports` for the terms.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot, hot_loop
from headrace.policies.flow.ports import (
    INFINITY_BITS,
    STARVED,
    find_bits,
    freeze,
    note_moves,
    smallest_bits,
)


@hot
def _select(counts, classes, current, row):  # type: ignore[no-untyped-def]
    """Flows of the current class only."""
    for x in range(len(row)):
        row[x] = counts[x] if classes[x] == current else 0.0


@hot_loop
def fill_classes(  # type: ignore[no-untyped-def]
    order,
    num_pairs,
    sender,
    receiver,
    counts,
    counts_t,
    classes,
    classes_t,
    left,
    degree,
    share,
    share_bits,
    row,
    level,
    marks,
    bottleneck,
    moves,
):
    """Share the ports among classes.

    Args:
        order: Pairs with flows, sorted by class.
        num_pairs: How many there are.
        sender: Sending machine per pair.
        receiver: Receiving machine per pair.
        counts: Flows of the first class per pair, shape (M, M), float.
        counts_t: Its transpose, contiguous.
        classes: First class per pair, float, smaller first, shape (M, M).
        classes_t: Its transpose, contiguous.
        left: Capacity per port, 2M; used up.
        degree: Scratch of 2M.
        share: Scratch of 2M.
        share_bits: The same memory as integers.
        row: Scratch of M.
        level: Filled with the level of every full port, 0 for the others.
        marks: Which pairs are at which port so far, shape (2M, M).
        bottleneck: Bottleneck per pair so far, shape (M, M).
        moves: Filled with rows (pair, new bottleneck).

    Returns:
        Number of moves.
    """
    num = len(counts)
    for p in range(2 * num):
        level[p] = 0.0
        degree[p] = 0.0
        share[p] = np.inf
    num_moves = 0
    i = 0
    while i < num_pairs:
        current = classes[sender[order[i]], receiver[order[i]]]
        num_served = 0
        while i < num_pairs:
            pair = order[i]
            a, b = sender[pair], receiver[pair]
            if classes[a, b] != current:
                break
            # A port that an earlier class filled has a level.
            if level[a] == 0.0 and level[num + b] == 0.0:
                degree[a] += counts[a, b]
                degree[num + b] += counts[a, b]
                num_served += 1
            elif bottleneck[a, b] != STARVED:
                moves[num_moves, 0] = pair
                moves[num_moves, 1] = STARVED
                num_moves += 1
            i += 1
        if num_served == 0:
            continue
        for p in range(2 * num):
            quotient = left[p] / degree[p]
            share[p] = quotient if degree[p] > 0.5 else np.inf
        while True:
            bits = smallest_bits(share_bits)
            if bits == INFINITY_BITS:
                break
            full = find_bits(share_bits, bits)
            rate = share[full]
            level[full] = rate
            share[full] = np.inf
            degree[full] = 0.0
            if full < num:
                _select(counts[full], classes[full], current, row)
                num_moves = note_moves(full, row, marks[full], degree[num:], moves, num_moves)
                freeze(rate, row, left[num:], degree[num:], share[num:])
            else:
                _select(counts_t[full - num], classes_t[full - num], current, row)
                num_moves = note_moves(full, row, marks[full], degree[:num], moves, num_moves)
                freeze(rate, row, left[:num], degree[:num], share[:num])
    return num_moves
