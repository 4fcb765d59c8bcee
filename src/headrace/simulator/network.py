"""Open flows between machine pairs, and the service clocks of the ports that limit them.

A port has a service clock: bytes it has given each of its member flows so far. A pair belongs to the port that is
its bottleneck, so a flow's completion is a fixed mark on that clock and a change of rate touches ports, not flows.
Marks live in one small heap per pair, on the pair's own clock: `base` is the difference between the two, so a pair
moves from port to port in constant time. Under `priority` a pair's heap holds its first class only; flows of later
classes wait behind it in the same stretch of memory, with the bytes they have left instead of a mark.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.policies.compiled import hot
from headrace.policies.flow.ports import INFINITY_BITS, NEVER, STARVED, find_bits, smallest_bits
from headrace.simulator.progress_kernel import Fixed


class Network(NamedTuple):
    """Port a is machine a's outgoing NIC, port M + b machine b's incoming one; pair = a * M + b."""

    sender: Any
    receiver: Any
    counts: Any
    counts_t: Any
    classes: Any
    classes_t: Any
    class_bits: Any
    bottleneck: Any
    base: Any
    num_front: Any
    num_open: Any
    item_start: Any
    item_mark: Any
    item_edge: Any
    item_class: Any
    capacity: Any
    degree: Any
    marks: Any
    """Next mark per port and partner on the port's clock; infinity for pairs that are not members."""
    mark_bits: Any
    block_bits: Any
    """Smallest mark per port and block of partners; empty in small networks."""
    best: Any
    best_at: Any
    is_stale: Any
    """Whether `best` must be looked for again."""
    rate: Any
    service: Any
    clock_s: Any
    next_s: Any
    next_bits: Any
    next_block_bits: Any
    """Smallest `next_s` per block of ports; empty in small networks."""
    sorted_rate: Any
    """Rates of each side in rising order, for `oes` in large networks."""
    sorted_port: Any
    rank: Any
    is_dirty: Any
    dirty: Any
    is_touched: Any
    touched: Any
    sizes: Any
    """Dirty pairs, touched ports, whether rates must be found from scratch."""
    rest: Any
    """What a full port has for its members, or what another port has left."""
    members: Any
    full_class: Any
    """Class in which a port filled up; infinity if it did not."""
    filled_at: Any
    """When ports filled up, as increasing numbers."""
    pending: Any
    """`filled_at` for ports whose level must be looked at, else `NEVER`."""
    free: Any
    share: Any
    share_bits: Any
    row: Any
    row_bits: Any
    level: Any
    moves: Any


DIRTY, TOUCHED, BROKEN = 0, 1, 2
BLOCK = 32
LARGE = 64
"""Machines beyond which minima are kept per block and `oes` sorts ports. A guess, not tuned."""


def idle_network(fixed: Fixed) -> Network:
    """A network without open flows."""
    num = fixed.num_machines
    per_pair = np.bincount(fixed.edge_pair[fixed.edge_pair >= 0], minlength=num * num)
    num_items = int(per_pair.sum())
    ports = 2 * num
    has_blocks, num_blocks = num > LARGE, -(-num // BLOCK)
    pairs = np.arange(num * num, dtype=np.int32)
    marks, next_s, share = np.full((ports, num), np.inf), np.full(ports, np.inf), np.zeros(ports)
    classes, row = np.full((num, num), np.inf), np.zeros(1)
    return Network(
        sender=pairs // num,
        receiver=pairs % num,
        counts=np.zeros((num, num)),
        counts_t=np.zeros((num, num)),
        classes=classes,
        class_bits=classes.view(np.int64),
        classes_t=np.full((num, num), np.inf),
        bottleneck=np.full((num, num), STARVED, dtype=np.int32),
        base=np.zeros((num, num)),
        num_front=np.zeros(num * num, dtype=np.int32),
        num_open=np.zeros(num * num, dtype=np.int32),
        item_start=np.concatenate([[0], np.cumsum(per_pair)]).astype(np.int64),
        item_mark=np.zeros(num_items),
        item_edge=np.zeros(num_items, dtype=np.int32),
        item_class=np.zeros(num_items),
        capacity=np.concatenate([fixed.nic_out, fixed.nic_in]),
        degree=np.zeros(ports),
        marks=marks,
        mark_bits=marks.view(np.int64),
        block_bits=np.full((ports, num_blocks if has_blocks else 0), INFINITY_BITS),
        best=np.full(ports, np.inf),
        best_at=np.zeros(ports, dtype=np.int32),
        is_stale=np.zeros(ports, dtype=np.bool_),
        rate=np.zeros(ports),
        service=np.zeros(ports),
        clock_s=np.zeros(ports),
        next_s=next_s,
        next_bits=next_s.view(np.int64),
        next_block_bits=np.full(2 * num_blocks if has_blocks else 0, INFINITY_BITS),
        sorted_rate=np.zeros((2, num if has_blocks else 0)),
        sorted_port=np.arange(ports, dtype=np.int32).reshape(2, num),
        rank=np.arange(ports, dtype=np.int32) % num,
        is_dirty=np.zeros(num * num, dtype=np.bool_),
        dirty=np.zeros(num * num, dtype=np.int32),
        is_touched=np.zeros(ports, dtype=np.bool_),
        touched=np.zeros(ports, dtype=np.int32),
        sizes=np.array([0, 0, 1], dtype=np.int64),
        rest=np.zeros(ports),
        members=np.zeros(ports),
        full_class=np.full(ports, np.inf),
        filled_at=np.full(ports, NEVER),
        pending=np.full(ports, NEVER),
        free=np.zeros(ports),
        share=share,
        share_bits=share.view(np.int64),
        row=row,
        row_bits=row.view(np.int64),
        level=np.zeros(ports),
        moves=np.zeros((2 * num * num, 2), dtype=np.int32),
    )


@hot
def mark_dirty(net, pair):  # type: ignore[no-untyped-def]
    """Remember that a pair's flows changed."""
    if not net.is_dirty[pair]:
        net.is_dirty[pair] = True
        net.dirty[net.sizes[DIRTY]] = pair
        net.sizes[DIRTY] += 1


@hot
def touch(net, port, now_s):  # type: ignore[no-untyped-def]
    """Bring a port's clock up to now and remember to look for its next completion."""
    if not net.is_touched[port]:
        net.is_touched[port] = True
        net.touched[net.sizes[TOUCHED]] = port
        net.sizes[TOUCHED] += 1
        net.service[port] += net.rate[port] * (now_s - net.clock_s[port])
        net.clock_s[port] = now_s


@hot
def is_large(net):  # type: ignore[no-untyped-def]
    """Whether minima are kept per block."""
    return len(net.next_block_bits) > 0


@hot
def _find_smallest(bits, block_bits):  # type: ignore[no-untyped-def]
    """Index of the smallest of many non-negative floats; 0 if all are infinite."""
    if len(block_bits) == 0:
        smallest = smallest_bits(bits)
        return find_bits(bits, smallest)
    smallest = smallest_bits(block_bits)
    if smallest == INFINITY_BITS:
        return 0
    first = find_bits(block_bits, smallest) * BLOCK
    return first + find_bits(bits[first : first + BLOCK], smallest)


@hot
def _set_block(net, port, x, mark):  # type: ignore[no-untyped-def]
    """Keep the smallest mark of a block, before the mark is set."""
    block = x // BLOCK
    bits, old = net.mark_bits[port], net.mark_bits[port, x]
    net.marks[port, x] = mark
    if bits[x] < net.block_bits[port, block]:
        net.block_bits[port, block] = bits[x]
    elif old == net.block_bits[port, block]:
        first = block * BLOCK
        net.block_bits[port, block] = smallest_bits(bits[first : first + BLOCK])


@hot
def aim(net, port):  # type: ignore[no-untyped-def]
    """Find a port's next completion; its clock must be up to date."""
    if net.is_stale[port]:
        net.is_stale[port] = False
        at = _find_smallest(net.mark_bits[port], net.block_bits[port])
        net.best_at[port] = at
        net.best[port] = net.marks[port, at]
    ahead = net.best[port] - net.service[port]
    ahead = ahead if ahead > 0.0 else 0.0
    in_s = ahead / net.rate[port]
    net.next_s[port] = net.clock_s[port] + in_s if net.rate[port] > 0.0 else np.inf
    if is_large(net):
        first = port // BLOCK * BLOCK
        net.next_block_bits[port // BLOCK] = smallest_bits(net.next_bits[first : first + BLOCK])


@hot
def first_port(net):  # type: ignore[no-untyped-def]
    """The port with the next completion."""
    return _find_smallest(net.next_bits, net.next_block_bits)


@hot
def set_mark(net, a, b, port, mark):  # type: ignore[no-untyped-def]
    """The next completion of a pair on its port's clock."""
    x = b if port == a else a
    if is_large(net):
        _set_block(net, port, x, mark)
    net.marks[port, x] = mark
    if mark <= net.best[port]:
        net.best[port] = mark
        net.best_at[port] = x
    elif x == net.best_at[port]:
        net.is_stale[port] = True


@hot
def served(net, a, b):  # type: ignore[no-untyped-def]
    """The pair's own clock; its port's clock must be up to date."""
    port = net.bottleneck[a, b]
    return net.base[a, b] if port == STARVED else net.service[port] - net.base[a, b]


@hot
def attach(net, a, b, port, now_s):  # type: ignore[no-untyped-def]
    """Move a pair to another bottleneck, or to none."""
    old = net.bottleneck[a, b]
    if old != STARVED:
        touch(net, old, now_s)
        set_mark(net, a, b, old, np.inf)
    done = served(net, a, b)
    net.bottleneck[a, b] = port
    if port == STARVED:
        net.base[a, b] = done
    else:
        touch(net, port, now_s)
        net.base[a, b] = net.service[port] - done
        head = net.item_mark[net.item_start[a * len(net.counts) + b]]
        set_mark(net, a, b, port, head + net.base[a, b])


@hot
def push_item(net, first, i, mark, edge):  # type: ignore[no-untyped-def]
    """Let a mark rise from position i of the heap at `first`."""
    marks, edges = net.item_mark, net.item_edge
    while i > 0:
        parent = (i - 1) >> 1
        if marks[first + parent] <= mark:
            break
        marks[first + i] = marks[first + parent]
        edges[first + i] = edges[first + parent]
        i = parent
    marks[first + i] = mark
    edges[first + i] = edge


@hot
def pop_item(net, first, size):  # type: ignore[no-untyped-def]
    """Take the smallest mark off a heap; leaves a hole at its end.

    Returns:
        The edge whose flow ends.
    """
    marks, edges = net.item_mark, net.item_edge
    edge = edges[first]
    last = size - 1
    mark, moved = marks[first + last], edges[first + last]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        if child + 1 < last and marks[first + child + 1] < marks[first + child]:
            child += 1
        if mark <= marks[first + child]:
            break
        marks[first + i] = marks[first + child]
        edges[first + i] = edges[first + child]
        i = child
    marks[first + i] = mark
    edges[first + i] = moved
    return edge


@hot
def move_item(net, source, target):  # type: ignore[no-untyped-def]
    """Copy a flow from one place to another."""
    net.item_mark[target] = net.item_mark[source]
    net.item_edge[target] = net.item_edge[source]
    net.item_class[target] = net.item_class[source]


@hot
def promote(net, pair, done):  # type: ignore[no-untyped-def]
    """The front is empty: the first class among the waiting flows becomes the front."""
    first, num_open = net.item_start[pair], net.num_open[pair]
    current = np.inf
    for i in range(first, first + num_open):
        current = min(current, net.item_class[i])
    front = 0
    for i in range(first, first + num_open):
        if net.item_class[i] == current:
            mark, edge = net.item_mark[i] + done, net.item_edge[i]
            move_item(net, first + front, i)
            net.item_class[first + front] = current
            push_item(net, first, front, mark, edge)
            front += 1
    net.num_front[pair] = front


@hot
def insert(net, pair, edge, volume, key):  # type: ignore[no-untyped-def]
    """Add a flow of class `key` to its pair; the clock of the pair's port must be up to date."""
    a, b = net.sender[pair], net.receiver[pair]
    first, front, num_open = net.item_start[pair], net.num_front[pair], net.num_open[pair]
    done = served(net, a, b)
    net.num_open[pair] = num_open + 1
    if num_open > 0:
        current = net.item_class[first]
        if key > current:
            net.item_mark[first + num_open] = volume
            net.item_edge[first + num_open] = edge
            net.item_class[first + num_open] = key
            return
        if key < current:
            for i in range(first, first + front):
                net.item_mark[i] -= done
            front = 0
        if front < num_open:
            move_item(net, first + front, first + num_open)
    net.item_class[first + front] = key
    push_item(net, first, front, done + volume, edge)
    net.num_front[pair] = front + 1
    port = net.bottleneck[a, b]
    if port != STARVED:
        set_mark(net, a, b, port, net.item_mark[first] + net.base[a, b])
    mark_dirty(net, pair)
