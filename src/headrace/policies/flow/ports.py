"""`maxmin` and `priority` per machine pair, for the fast kernel.

All flows of a pair (for `priority`: of its first class) have the same rate, the level of the pair's
bottleneck port. A solution is a level per port and a bottleneck per pair. Port a is the outgoing
NIC of machine a, port M + b the incoming NIC of machine b. `STARVED` pairs have rate 0. A flow
without its own limit fills one of its ports, so only the first class of a pair has a positive rate:
`counts` and `classes` describe that class. `maxmin` has a single class.

`counts[a, b]` is the number of participating flows from a to b; `counts_t` is its transpose, so
that a port's pairs are contiguous on both sides. `marks[p, x]` is finite if port p is the current
bottleneck of its pair with machine x. A pass lists only the pairs whose bottleneck changed.

Bits of non-negative floats sort like integers. Minima are taken over integer views (`..._bits`)
because LLVM vectorises those and not the minimum of floats.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot
from headrace.policies.flow.layout import (
    CAPACITY,
    CLASSES,
    CLASSES_T,
    COUNTS,
    COUNTS_T,
    FILLED_AT,
    FREE,
    FULL_CLASS,
    LEVEL,
    MEMBERS,
    PENDING,
    REST,
    SCRATCH,
    SHARE,
)

STARVED = -1
INFINITY_BITS = 0x7FF0000000000000
NEVER = INFINITY_BITS
PORT_MASK = 0xFFFFFFFF


@hot
def smallest_bits(bits):
    """Bits of the smallest of non-negative floats."""
    best = np.int64(INFINITY_BITS)
    for i in range(len(bits)):
        best = min(best, bits[i])
    return best


@hot
def find_bits(bits, value):
    """Index of the first value with these bits, which must exist."""
    at = 0
    while bits[at] != value:
        at += 1
    return at


@hot
def divide(left, degree, share):
    """Even shares of the remaining capacity; infinite for ports without flows."""
    for p in range(len(share)):
        quotient = left[p] / degree[p]
        share[p] = quotient if degree[p] > 0.5 else np.inf


@hot
def _freeze(net, full, row, classes, current, marks, rest, free, num_moves):
    """Freeze the pairs of port `full` and subtract their rates at their other ports.

    `row`, `classes`, `marks`, `rest` (capacity) and `free` (unfrozen flows) are per partner. Pairs
    with a changed bottleneck are added to `net.moves`. Returns the updated number of moves.
    """
    num = len(row)
    hits = 0
    for x in range(num):
        hits += (
            np.int64(classes[x] == current) & np.int64(free[x] > 0.5) & np.int64(marks[x] == np.inf)
        )
    if hits > 0:
        for x in range(num):
            if classes[x] == current and free[x] > 0.5 and marks[x] == np.inf:
                net.moves[num_moves, 0] = full * num + x if full < num else x * num + full - num
                net.moves[num_moves, 1] = full
                num_moves += 1
    rate = net.ports[SHARE, full]
    for x in range(num):
        flows = free[x]
        frozen = row[x] if flows > 0.5 and classes[x] == current else 0.0
        left = rest[x] - rate * frozen
        rest[x] = left if left > 0.0 else 0.0
        free[x] = flows - frozen
    net.ports[LEVEL, full] = rate
    net.ports[MEMBERS, full] = net.ports[FREE, full]
    net.ports[FULL_CLASS, full] = current
    net.ports[FREE, full] = 0.0
    net.ports[SHARE, full] = np.inf
    return num_moves


@hot
def _begin(net):
    """Reset all ports."""
    for p in range(net.ports.shape[1]):
        net.ports[LEVEL, p] = 0.0
        net.ports[REST, p] = net.ports[CAPACITY, p]
        net.ports[FULL_CLASS, p] = np.inf
        net.port_ids[FILLED_AT, p] = NEVER
        net.port_ids[PENDING, p] = NEVER


@hot
def _next_class(net, done):
    """Bits of the first class after `done` between ports that are not full."""
    num = net.planes.shape[1]
    in_class = net.ports[FULL_CLASS, num:]
    best = np.int64(INFINITY_BITS)
    for a in range(num):
        if net.ports[FULL_CLASS, a] == np.inf:
            bits = net.planes[CLASSES, a].view(np.int64)
            for b in range(num):
                is_open = bits[b] > done and in_class[b] == np.inf
                best = min(best, bits[b] if is_open else np.int64(INFINITY_BITS))
    return best


@hot
def _add_demand(row, classes, current, full_class, free):
    """Add a port's flows of one class to the ports of the other side that are not full."""
    for x in range(len(row)):
        takes_part = classes[x] == current and full_class[x] == np.inf
        free[x] += row[x] if takes_part else 0.0


@hot
def _demand(net, current):
    """Count flows of one class per port, between ports that are not full."""
    num = net.planes.shape[1]
    for p in range(2 * num):
        net.ports[FREE, p] = 0.0
    for x in range(num):
        if net.ports[FULL_CLASS, x] == np.inf:
            _add_demand(
                net.planes[COUNTS, x],
                net.planes[CLASSES, x],
                current,
                net.ports[FULL_CLASS, num:],
                net.ports[FREE, num:],
            )
        if net.ports[FULL_CLASS, num + x] == np.inf:
            _add_demand(
                net.planes[COUNTS_T, x],
                net.planes[CLASSES_T, x],
                current,
                net.ports[FULL_CLASS, :num],
                net.ports[FREE, :num],
            )


@hot
def _starve(net, num_moves):
    """List pairs that have a bottleneck and a port filled by an earlier class."""
    num = net.planes.shape[1]
    for p in range(2 * num):
        marks = net.marks[p]
        classes = net.planes[CLASSES, p] if p < num else net.planes[CLASSES_T, p - num]
        others = net.ports[FULL_CLASS, num:] if p < num else net.ports[FULL_CLASS, :num]
        mine = net.ports[FULL_CLASS, p]
        hits = 0
        for x in range(num):
            hits += np.int64(marks[x] < np.inf) & (
                np.int64(mine < classes[x]) | np.int64(others[x] < classes[x])
            )
        if hits > 0:
            for x in range(num):
                if marks[x] < np.inf and (mine < classes[x] or others[x] < classes[x]):
                    net.moves[num_moves, 0] = p * num + x if p < num else x * num + p - num
                    net.moves[num_moves, 1] = STARVED
                    num_moves += 1
    return num_moves


@hot
def fill_ports(net):
    """Progressive filling per class on the capacity left by earlier classes.

    Ports of one side share no pairs, and filling a port below the others' shares only raises them.
    All ports of one side whose share is within the smallest share of the other side are therefore
    filled together. Sets levels and related rows, and writes rows (pair, new bottleneck) to
    `moves`.

    Returns:
        Number of moves.
    """
    num = net.planes.shape[1]
    rest, free, share, bits = (
        net.ports[REST],
        net.ports[FREE],
        net.ports[SHARE],
        net.ports[SHARE].view(np.int64),
    )
    _begin(net)
    num_moves = num_full = 0
    class_bits = np.int64(-1)
    while True:
        class_bits = _next_class(net, class_bits)
        if class_bits == INFINITY_BITS:
            return _starve(net, num_moves)
        net.ports[SCRATCH].view(np.int64)[0] = class_bits
        current = net.ports[SCRATCH, 0]
        _demand(net, current)
        divide(rest, free, share)
        while True:
            out_bits, in_bits = smallest_bits(bits[:num]), smallest_bits(bits[num:])
            if out_bits == INFINITY_BITS:
                break
            if out_bits <= in_bits:
                for a in range(num):
                    if bits[a] <= in_bits:
                        net.port_ids[FILLED_AT, a] = (num_full << 32) + a
                        num_full += 1
                        num_moves = _freeze(
                            net,
                            a,
                            net.planes[COUNTS, a],
                            net.planes[CLASSES, a],
                            current,
                            net.marks[a],
                            rest[num:],
                            free[num:],
                            num_moves,
                        )
                divide(rest[num:], free[num:], share[num:])
            else:
                for b in range(num):
                    p = num + b
                    if bits[p] <= out_bits:
                        net.port_ids[FILLED_AT, p] = (num_full << 32) + p
                        num_full += 1
                        num_moves = _freeze(
                            net,
                            p,
                            net.planes[COUNTS_T, b],
                            net.planes[CLASSES_T, b],
                            current,
                            net.marks[p],
                            rest[:num],
                            free[:num],
                            num_moves,
                        )
                divide(rest[:num], free[:num], share[:num])
