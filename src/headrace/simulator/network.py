"""Open flows of machine pairs, and the service clocks of the ports that limit them.

The service clock of a port counts the bytes sent to each of its member flows. A pair belongs to its
bottleneck port, so a flow completes at a fixed mark on that clock, and a rate change updates ports,
not flows. Marks are kept in one small heap per pair, on the pair's own clock; `base` is the
difference between the two clocks, so a pair changes ports in constant time. Under `priority` a heap
holds the pair's first class only; later classes are stored behind it with their remaining bytes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.policies.compiled import hot, warm
from headrace.policies.flow.layout import (
    BASE,
    BEST,
    BEST_AT,
    CAPACITY,
    CLASSES,
    CLASSES_T,
    CLOCK_S,
    DIRTY,
    FILLED_AT,
    FULL_CLASS,
    IS_DIRTY,
    IS_STALE,
    IS_TOUCHED,
    ITEM_CLASS,
    ITEM_MARK,
    NEXT_S,
    NUM_DIRTY,
    NUM_FRONT,
    NUM_ITEM_ROWS,
    NUM_OPEN,
    NUM_PAIR_ROWS,
    NUM_PLANES,
    NUM_PORT_ID_ROWS,
    NUM_PORT_ROWS,
    NUM_TOUCHED,
    PENDING,
    RANK,
    RATE,
    RECEIVER,
    SENDER,
    SERVICE,
    SORTED_PORT,
    TOUCHED,
)
from headrace.policies.flow.ports import INFINITY_BITS, NEVER, STARVED, find_bits, smallest_bits
from headrace.simulator.progress_kernel import Fixed


class Network(NamedTuple):
    """Port a is the outgoing NIC of machine a, port M + b the incoming NIC of b; pair = a * M + b.

    Row indices are in `layout`.
    """

    ports: Any
    port_ids: Any
    planes: Any
    pairs: Any
    bottleneck: Any
    """Bottleneck port per pair, or `STARVED`."""
    marks: Any
    """Next mark per port and partner on the port's clock; infinity for non-members."""
    block_bits: Any
    """Smallest mark per port and block of partners; empty in small networks."""
    next_block_bits: Any
    """Smallest next completion per block of ports; empty in small networks."""
    item_start: Any
    items: Any
    item_edge: Any
    sizes: Any
    moves: Any


BLOCK = 32
LARGE = 64
"""Number of machines above which minima are kept per block and `oes` sorts ports; not tuned."""


def idle_network(fixed: Fixed) -> Network:
    """A network without open flows."""
    num = fixed.num_machines
    per_pair = np.bincount(fixed.edge_pair[fixed.edge_pair >= 0], minlength=num * num)
    num_items = int(per_pair.sum())
    num_ports = 2 * num
    has_blocks, num_blocks = num > LARGE, -(-num // BLOCK)
    ports = np.zeros((NUM_PORT_ROWS, num_ports))
    ports[CAPACITY] = fixed.nics.ravel()
    ports[[BEST, NEXT_S, FULL_CLASS]] = np.inf
    port_ids = np.zeros((NUM_PORT_ID_ROWS, num_ports), dtype=np.int64)
    port_ids[RANK] = np.arange(num_ports) % num
    port_ids[SORTED_PORT] = np.arange(num_ports)
    port_ids[[FILLED_AT, PENDING]] = NEVER
    planes = np.zeros((NUM_PLANES, num, num))
    planes[[CLASSES, CLASSES_T]] = np.inf
    pairs = np.zeros((NUM_PAIR_ROWS, num * num), dtype=np.int32)
    pairs[SENDER], pairs[RECEIVER] = np.divmod(np.arange(num * num), num)
    return Network(
        ports=ports,
        port_ids=port_ids,
        planes=planes,
        pairs=pairs,
        bottleneck=np.full((num, num), STARVED, dtype=np.int32),
        marks=np.full((num_ports, num), np.inf),
        block_bits=np.full((num_ports, num_blocks if has_blocks else 0), INFINITY_BITS),
        next_block_bits=np.full(2 * num_blocks if has_blocks else 0, INFINITY_BITS),
        item_start=np.concatenate([[0], np.cumsum(per_pair)]).astype(np.int64),
        items=np.zeros((NUM_ITEM_ROWS, num_items)),
        item_edge=np.zeros(num_items, dtype=np.int32),
        sizes=np.array([0, 0, 1], dtype=np.int64),
        moves=np.zeros((2 * num * num, 2), dtype=np.int32),
    )


@hot
def mark_dirty(net, pair):
    """Record that a pair's flows changed."""
    if not net.pairs[IS_DIRTY, pair]:
        net.pairs[IS_DIRTY, pair] = True
        net.pairs[DIRTY, net.sizes[NUM_DIRTY]] = pair
        net.sizes[NUM_DIRTY] += 1


@hot
def touch(net, port, now_s):
    """Advance a port's clock to now and schedule an update of its next completion."""
    if not net.port_ids[IS_TOUCHED, port]:
        net.port_ids[IS_TOUCHED, port] = True
        net.port_ids[TOUCHED, net.sizes[NUM_TOUCHED]] = port
        net.sizes[NUM_TOUCHED] += 1
        net.ports[SERVICE, port] += net.ports[RATE, port] * (now_s - net.ports[CLOCK_S, port])
        net.ports[CLOCK_S, port] = now_s


@hot
def is_large(net):
    """Whether minima are kept per block."""
    return len(net.next_block_bits) > 0


@hot
def _find_smallest(bits, block_bits):
    """Index of the smallest of many non-negative floats; 0 if all are infinite."""
    if len(block_bits) == 0:
        smallest = smallest_bits(bits)
        return find_bits(bits, smallest)
    smallest = smallest_bits(block_bits)
    if smallest == INFINITY_BITS:
        return 0
    first = find_bits(block_bits, smallest) * BLOCK
    return first + find_bits(bits[first : first + BLOCK], smallest)


@warm
def _set_block(net, port, x, mark):
    """Set a mark and update the smallest mark of its block."""
    block = x // BLOCK
    bits = net.marks[port].view(np.int64)
    old = bits[x]
    net.marks[port, x] = mark
    if bits[x] < net.block_bits[port, block]:
        net.block_bits[port, block] = bits[x]
    elif old == net.block_bits[port, block]:
        first = block * BLOCK
        net.block_bits[port, block] = smallest_bits(bits[first : first + BLOCK])


@hot
def aim(net, port):
    """Compute a port's next completion; its clock must be current."""
    if net.port_ids[IS_STALE, port]:
        net.port_ids[IS_STALE, port] = False
        at = _find_smallest(net.marks[port].view(np.int64), net.block_bits[port])
        net.port_ids[BEST_AT, port] = at
        net.ports[BEST, port] = net.marks[port, at]
    ahead = net.ports[BEST, port] - net.ports[SERVICE, port]
    ahead = ahead if ahead > 0.0 else 0.0
    in_s = ahead / net.ports[RATE, port]
    net.ports[NEXT_S, port] = (
        net.ports[CLOCK_S, port] + in_s if net.ports[RATE, port] > 0.0 else np.inf
    )
    if is_large(net):
        first = port // BLOCK * BLOCK
        net.next_block_bits[port // BLOCK] = smallest_bits(
            net.ports[NEXT_S, first : first + BLOCK].view(np.int64)
        )


@hot
def first_port(net):
    """Port with the next completion."""
    return _find_smallest(net.ports[NEXT_S].view(np.int64), net.next_block_bits)


@hot
def set_mark(net, a, b, port, mark):
    """Set the next completion of a pair on its port's clock."""
    x = b if port == a else a
    if is_large(net):
        _set_block(net, port, x, mark)
    net.marks[port, x] = mark
    if mark <= net.ports[BEST, port]:
        net.ports[BEST, port] = mark
        net.port_ids[BEST_AT, port] = x
    elif x == net.port_ids[BEST_AT, port]:
        net.port_ids[IS_STALE, port] = True


@hot
def served(net, a, b):
    """The pair's own clock; its port's clock must be current."""
    port = net.bottleneck[a, b]
    return (
        net.planes[BASE, a, b]
        if port == STARVED
        else net.ports[SERVICE, port] - net.planes[BASE, a, b]
    )


@warm
def attach(net, a, b, port, now_s):
    """Move a pair to another bottleneck port, or to `STARVED`."""
    old = net.bottleneck[a, b]
    if old != STARVED:
        touch(net, old, now_s)
        set_mark(net, a, b, old, np.inf)
    done = served(net, a, b)
    net.bottleneck[a, b] = port
    if port == STARVED:
        net.planes[BASE, a, b] = done
    else:
        touch(net, port, now_s)
        net.planes[BASE, a, b] = net.ports[SERVICE, port] - done
        head = net.items[ITEM_MARK, net.item_start[a * net.planes.shape[1] + b]]
        set_mark(net, a, b, port, head + net.planes[BASE, a, b])


@hot
def push_item(net, first, i, mark, edge):
    """Insert a mark at position i of the heap at `first` and sift it up."""
    marks, edges = net.items[ITEM_MARK], net.item_edge
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
def pop_item(net, first, size):
    """Pop the smallest mark of a heap; return the edge of the completed flow."""
    marks, edges = net.items[ITEM_MARK], net.item_edge
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
def move_item(net, source, target):
    """Copy a flow to another slot."""
    net.items[ITEM_MARK, target] = net.items[ITEM_MARK, source]
    net.item_edge[target] = net.item_edge[source]
    net.items[ITEM_CLASS, target] = net.items[ITEM_CLASS, source]


@warm
def promote(net, pair, done):
    """Make the first class among the waiting flows the new front."""
    first, num_open = net.item_start[pair], net.pairs[NUM_OPEN, pair]
    current = np.inf
    for i in range(first, first + num_open):
        current = min(current, net.items[ITEM_CLASS, i])
    front = 0
    for i in range(first, first + num_open):
        if net.items[ITEM_CLASS, i] == current:
            mark, edge = net.items[ITEM_MARK, i] + done, net.item_edge[i]
            move_item(net, first + front, i)
            net.items[ITEM_CLASS, first + front] = current
            push_item(net, first, front, mark, edge)
            front += 1
    net.pairs[NUM_FRONT, pair] = front


@hot
def insert(net, pair, edge, volume, key):
    """Add a flow of class `key` to its pair; the clock of the pair's port must be current."""
    a, b = net.pairs[SENDER, pair], net.pairs[RECEIVER, pair]
    first, front, num_open = (
        net.item_start[pair],
        net.pairs[NUM_FRONT, pair],
        net.pairs[NUM_OPEN, pair],
    )
    done = served(net, a, b)
    net.pairs[NUM_OPEN, pair] = num_open + 1
    if num_open > 0:
        current = net.items[ITEM_CLASS, first]
        if key > current:
            net.items[ITEM_MARK, first + num_open] = volume
            net.item_edge[first + num_open] = edge
            net.items[ITEM_CLASS, first + num_open] = key
            return
        if key < current:
            for i in range(first, first + front):
                net.items[ITEM_MARK, i] -= done
            front = 0
        if front < num_open:
            move_item(net, first + front, first + num_open)
    net.items[ITEM_CLASS, first + front] = key
    push_item(net, first, front, done + volume, edge)
    net.pairs[NUM_FRONT, pair] = front + 1
    port = net.bottleneck[a, b]
    if port != STARVED:
        set_mark(net, a, b, port, net.items[ITEM_MARK, first] + net.planes[BASE, a, b])
    mark_dirty(net, pair)
