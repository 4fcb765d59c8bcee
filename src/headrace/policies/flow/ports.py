"""`maxmin` at the grain of machine pairs, and what `priority` shares with it, for the fast kernel.

All flows of one machine pair (for `priority`: of the pair's first class) have one rate under these rules, and that
rate is the level of one port, the pair's bottleneck. So a decision is a level per port and a bottleneck per pair.
Port a is machine a's outgoing NIC, port M + b machine b's incoming one. `STARVED` pairs get nothing.

`counts[a, b]` is the number of flows from a to b that take part; `counts_t` is its transpose, kept beside it so that
a port's pairs are contiguous on both sides. `marks[p, x]` is finite if port p is the bottleneck of its pair with
machine x so far. A pass only lists the pairs whose bottleneck is another one now: in most passes there are few.

Rates and times are never negative, and the bits of such floats sort like integers. Minima are taken over integer
views of the same memory (`..._bits`) because LLVM vectorises those and not the minimum of floats.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot

STARVED = -1
INFINITY_BITS = 0x7FF0000000000000
NEVER = INFINITY_BITS


@hot
def smallest_bits(bits):  # type: ignore[no-untyped-def]
    """The smallest of non-negative floats, as bits."""
    best = np.int64(INFINITY_BITS)
    for i in range(len(bits)):
        best = min(best, bits[i])
    return best


@hot
def find_bits(bits, value):  # type: ignore[no-untyped-def]
    """Index of the first value with these bits; there must be one."""
    at = 0
    while bits[at] != value:
        at += 1
    return at


@hot
def divide(left, degree, share):  # type: ignore[no-untyped-def]
    """Even shares of what is left; infinite where nobody asks."""
    for p in range(len(share)):
        quotient = left[p] / degree[p]
        share[p] = quotient if degree[p] > 0.5 else np.inf


@hot
def freeze(full, rate, row, marks, left, degree, moves, num_moves):  # type: ignore[no-untyped-def]
    """A port is full: take its pairs' rates off the ports at their other ends.

    Args:
        full: The port.
        rate: Its level.
        row: Its flows per partner; partners without degree are frozen already.
        marks: Finite where the port has been the bottleneck so far.
        left: Capacity left per partner.
        degree: Flows not yet frozen per partner.
        moves: Filled with the pairs that had another bottleneck.
        num_moves: How many there are so far.

    Returns:
        How many there are now.
    """
    num = len(row)
    hits = 0
    for x in range(num):
        hits += np.int64(row[x] > 0.0) & np.int64(degree[x] > 0.5) & np.int64(marks[x] == np.inf)
    if hits > 0:
        for x in range(num):
            if row[x] > 0.0 and degree[x] > 0.5 and marks[x] == np.inf:
                moves[num_moves, 0] = full * num + x if full < num else x * num + full - num
                moves[num_moves, 1] = full
                num_moves += 1
    for x in range(num):
        flows = degree[x]
        frozen = row[x] if flows > 0.5 else 0.0
        rest = left[x] - rate * frozen
        left[x] = rest if rest > 0.0 else 0.0
        degree[x] = flows - frozen
    return num_moves


@hot
def begin(net):  # type: ignore[no-untyped-def]
    """Empty all ports."""
    for p in range(len(net.level)):
        net.level[p] = 0.0
        net.rest[p] = net.capacity[p]
        net.free[p] = net.degree[p]
        net.full_class[p] = np.inf
        net.filled_at[p] = NEVER
        net.pending[p] = NEVER


@hot
def fill_up(net, port, current, step):  # type: ignore[no-untyped-def]
    """Book that a port is full."""
    net.level[port] = net.share[port]
    net.members[port] = net.free[port]
    net.full_class[port] = current
    net.filled_at[port] = step
    net.free[port] = 0.0
    net.share[port] = np.inf


@hot
def fill_pairs(net):  # type: ignore[no-untyped-def]
    """Max-min over all pairs by progressive filling.

    Ports of one side do not share pairs, and a port that fills up below the others' shares only raises them. So
    all ports of one side whose share is within the smallest share of the other side fill up in one go.

    Args:
        net: The network; levels and what belongs to them are set, `moves` is filled with rows (pair, new bottleneck).

    Returns:
        Number of moves.
    """
    num = len(net.counts)
    rest, free, share, bits = net.rest, net.free, net.share, net.share_bits
    begin(net)
    divide(rest, free, share)
    num_moves = 0
    step = 0
    while True:
        step += 1
        out_bits, in_bits = smallest_bits(bits[:num]), smallest_bits(bits[num:])
        if out_bits == INFINITY_BITS:
            return num_moves
        if out_bits <= in_bits:
            for a in range(num):
                if bits[a] <= in_bits:
                    num_moves = freeze(
                        a, share[a], net.counts[a], net.marks[a], rest[num:], free[num:], net.moves, num_moves
                    )
                    fill_up(net, a, 0.0, step)
            divide(rest[num:], free[num:], share[num:])
        else:
            for b in range(num):
                p = num + b
                if bits[p] <= out_bits:
                    num_moves = freeze(
                        p, share[p], net.counts_t[b], net.marks[p], rest[:num], free[:num], net.moves, num_moves
                    )
                    fill_up(net, p, 0.0, step)
            divide(rest[:num], free[:num], share[:num])
