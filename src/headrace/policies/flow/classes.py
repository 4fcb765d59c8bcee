"""`priority` at the grain of machine pairs: class after class, max-min on what earlier classes left.

A flow without a limit of its own fills one of its ports, so only the first class of a pair ever gets anything:
`counts` and `classes` describe that class alone. See `ports` for the terms.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot
from headrace.policies.flow.ports import (
    INFINITY_BITS,
    STARVED,
    begin,
    divide,
    fill_up,
    freeze,
    smallest_bits,
)


@hot
def _select(counts, classes, current, row):  # type: ignore[no-untyped-def]
    """Flows of the current class only."""
    for x in range(len(row)):
        row[x] = counts[x] if classes[x] == current else 0.0


@hot
def fill_classes(net, num_pairs, num_attached):  # type: ignore[no-untyped-def]
    """Share the ports among classes.

    Args:
        net: The network; levels and what belongs to them are set, `moves` is filled with rows (pair, new bottleneck).
        num_pairs: How many pairs have flows; `order` has them by class.
        num_attached: How many of them have a bottleneck.

    Returns:
        Number of moves.
    """
    num = len(net.counts)
    order, sender, receiver, bottleneck = net.order, net.sender, net.receiver, net.bottleneck
    counts, classes, row, full_class = net.counts, net.classes, net.row, net.full_class
    rest, free, share, bits = net.rest, net.free, net.share, net.share_bits
    begin(net)
    # Ports that still have something to give and somebody to give it to.
    num_out = num_in = 0
    for x in range(num):
        num_out += np.int64(free[x] > 0.5)
        num_in += np.int64(free[num + x] > 0.5)
        free[x] = free[num + x] = 0.0
    num_moves = 0
    i = step = 0
    while i < num_pairs:
        current = classes[sender[order[i]], receiver[order[i]]]
        num_served = 0
        while i < num_pairs:
            pair = order[i]
            a, b = sender[pair], receiver[pair]
            if classes[a, b] != current:
                break
            num_attached -= np.int64(bottleneck[a, b] != STARVED)
            if full_class[a] == np.inf and full_class[num + b] == np.inf:
                free[a] += counts[a, b]
                free[num + b] += counts[a, b]
                num_served += 1
            elif bottleneck[a, b] != STARVED:
                net.moves[num_moves, 0] = pair
                net.moves[num_moves, 1] = STARVED
                num_moves += 1
            i += 1
        if num_served > 0:
            divide(rest, free, share)
        while num_served > 0:
            step += 1
            out_bits, in_bits = smallest_bits(bits[:num]), smallest_bits(bits[num:])
            if out_bits == INFINITY_BITS:
                break
            if out_bits <= in_bits:
                for a in range(num):
                    if bits[a] <= in_bits:
                        num_out -= 1
                        _select(counts[a], classes[a], current, row)
                        num_moves = freeze(
                            a, share[a], row, net.marks[a], rest[num:], free[num:], net.moves, num_moves
                        )
                        fill_up(net, a, current, step)
                divide(rest[num:], free[num:], share[num:])
            else:
                for b in range(num):
                    p = num + b
                    if bits[p] <= out_bits:
                        num_in -= 1
                        _select(net.counts_t[b], net.classes_t[b], current, row)
                        num_moves = freeze(
                            p, share[p], row, net.marks[p], rest[:num], free[:num], net.moves, num_moves
                        )
                        fill_up(net, p, current, step)
                divide(rest[:num], free[:num], share[:num])
        if (num_out == 0 or num_in == 0) and num_attached == 0:
            break
    return num_moves
