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
    divide,
    freeze,
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
    num_attached,
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
        degree: Flows per port, 2M; used up.
        share: Scratch of 2M.
        share_bits: The same memory as integers.
        row: Scratch of M.
        level: Filled with the level of every full port, 0 for the others.
        marks: Which pairs are at which port so far, shape (2M, M).
        bottleneck: Bottleneck per pair so far, shape (M, M).
        num_attached: How many pairs have one.
        moves: Filled with rows (pair, new bottleneck).

    Returns:
        Number of moves.
    """
    num = len(counts)
    for p in range(2 * num):
        level[p] = 0.0
    # Ports that still have something to give and somebody to give it to.
    num_out = num_in = 0
    for x in range(num):
        num_out += np.int64(degree[x] > 0.5)
        num_in += np.int64(degree[num + x] > 0.5)
        degree[x] = degree[num + x] = 0.0
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
            num_attached -= np.int64(bottleneck[a, b] != STARVED)
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
        if num_served > 0:
            divide(left, degree, share)
        while num_served > 0:
            out_bits, in_bits = smallest_bits(share_bits[:num]), smallest_bits(share_bits[num:])
            if out_bits == INFINITY_BITS:
                break
            if out_bits <= in_bits:
                for a in range(num):
                    if share_bits[a] <= in_bits:
                        level[a] = share[a]
                        num_out -= 1
                        _select(counts[a], classes[a], current, row)
                        num_moves = freeze(
                            a, share[a], row, marks[a], left[num:], degree[num:], moves, num_moves
                        )
                        degree[a] = 0.0
                        share[a] = np.inf
                divide(left[num:], degree[num:], share[num:])
            else:
                for b in range(num):
                    p = num + b
                    if share_bits[p] <= out_bits:
                        level[p] = share[p]
                        num_in -= 1
                        _select(counts_t[b], classes_t[b], current, row)
                        num_moves = freeze(
                            p, share[p], row, marks[p], left[:num], degree[:num], moves, num_moves
                        )
                        degree[p] = 0.0
                        share[p] = np.inf
                divide(left[:num], degree[:num], share[:num])
        if (num_out == 0 or num_in == 0) and num_attached == 0:
            break
    return num_moves
