"""Update `maxmin` and `priority` rates after a small change without refilling all ports.

A full port has a level and serves the flows of one class, its members, at that level:

    level = (capacity - rates of flows limited elsewhere) / members = rest / members

Most events change no bottlenecks and only some levels. The change is recorded at the two ports of
its pair, and levels are updated in the order in which ports filled up. The result is accepted if it
satisfies the property that makes it the unique solution: each flow has a full port where no flow of
its class has a higher rate and no flow of a later class has any, and no port exceeds its capacity.
Otherwise all ports are refilled, which also removes accumulated rounding errors.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot
from headrace.policies.flow.layout import (
    BROKEN,
    CLASSES,
    CLASSES_T,
    COUNTS,
    COUNTS_T,
    FILLED_AT,
    FULL_CLASS,
    LEVEL,
    MEMBERS,
    NUM_TOUCHED,
    PENDING,
    REST,
    TOUCHED,
)
from headrace.policies.flow.ports import NEVER, PORT_MASK, STARVED, smallest_bits
from headrace.simulator.network import attach, touch

LAST = 1 << 60
"""Larger than any value of `fill_ports`; the lower half holds the port."""
MOST_PAIRS = 4
"""Changed pairs above which all ports are refilled; not tuned."""


@hot
def _book(net, port, num_members, other, taken):
    """Add members to a port and subtract their rate at the other port; mark both levels pending."""
    net.ports[MEMBERS, port] += num_members
    net.port_ids[PENDING, port] = net.port_ids[FILLED_AT, port]
    net.ports[REST, other] -= taken
    net.port_ids[PENDING, other] = net.port_ids[FILLED_AT, other]


@hot
def _has_later(classes, current):
    """Whether a port has flows of a later class."""
    hits = 0
    for x in range(len(classes)):
        hits += np.int64(classes[x] > current) & np.int64(classes[x] < np.inf)
    return hits > 0


@hot
def _serve_next(net, port, row, classes, full_class, now_s):
    """Serve the next class for which this port is the bottleneck after its members left."""
    num = len(row)
    done = net.ports[FULL_CLASS, port]
    current = np.inf
    for x in range(num):
        if done < classes[x] < current and full_class[x] >= classes[x]:
            current = classes[x]
    net.ports[FULL_CLASS, port] = current
    net.ports[LEVEL, port] = 0.0
    net.ports[MEMBERS, port] = 0.0
    net.port_ids[FILLED_AT, port] = NEVER
    if current < np.inf:
        net.port_ids[FILLED_AT, port] = LAST + np.int64(port)
        for x in range(num):
            if classes[x] == current and full_class[x] >= current:
                a, b = (port, x) if port < num else (x, port - num)
                net.ports[MEMBERS, port] += row[x]
                attach(net, a, b, port, now_s)
    net.port_ids[PENDING, port] = net.port_ids[FILLED_AT, port]


@hot
def _leave(net, a, b, now_s):
    """Remove a pair whose class has no more flows; counts and classes are still the old ones."""
    num = net.planes.shape[1]
    port = net.bottleneck[a, b]
    other = num + b if port == a else a
    flows = net.planes[COUNTS, a, b]
    _book(net, port, -flows, other, -flows * net.ports[LEVEL, port])
    attach(net, a, b, STARVED, now_s)
    if net.ports[MEMBERS, port] < 0.5:
        if port == a:
            _serve_next(
                net,
                port,
                net.planes[COUNTS, a],
                net.planes[CLASSES, a],
                net.ports[FULL_CLASS, num:],
                now_s,
            )
        else:
            _serve_next(
                net,
                port,
                net.planes[COUNTS_T, b],
                net.planes[CLASSES_T, b],
                net.ports[FULL_CLASS, :num],
                now_s,
            )


@hot
def _join(net, a, b, now_s):
    """Add a pair that has flows of another class; counts and classes are the new ones."""
    num = net.planes.shape[1]
    flows, current = net.planes[COUNTS, a, b], net.planes[CLASSES, a, b]
    first = min(net.ports[FULL_CLASS, a], net.ports[FULL_CLASS, num + b])
    if first < current:
        return
    if first > current:
        port = a if net.ports[REST, a] < net.ports[REST, num + b] else num + b
        classes = net.planes[CLASSES, a] if port == a else net.planes[CLASSES_T, b]
        if first < np.inf or _has_later(classes, current):
            net.sizes[BROKEN] = 1
            return
        net.ports[FULL_CLASS, port] = current
        net.ports[MEMBERS, port] = 0.0
        net.port_ids[FILLED_AT, port] = LAST + np.int64(port)
    elif net.ports[FULL_CLASS, a] != current:
        port = num + b
    elif net.ports[FULL_CLASS, num + b] != current:
        port = a
    else:
        port = a if net.ports[LEVEL, a] < net.ports[LEVEL, num + b] else num + b
    other = num + b if port == a else a
    _book(net, port, flows, other, flows * net.ports[LEVEL, port])
    attach(net, a, b, port, now_s)


@hot
def change(net, a, b, flows, current, now_s):
    """Record a change of a pair's first class or number of flows.

    `flows` is the new number of flows of the first class, `current` its class (infinity if none).
    """
    num = net.planes.shape[1]
    port = net.bottleneck[a, b]
    is_same = current == net.planes[CLASSES, a, b]
    if net.sizes[BROKEN] == 0 and port != STARVED:
        if is_same:
            grown = flows - net.planes[COUNTS, a, b]
            other = num + b if port == a else a
            _book(net, port, grown, other, grown * net.ports[LEVEL, port])
        else:
            _leave(net, a, b, now_s)
    net.planes[COUNTS, a, b] = net.planes[COUNTS_T, b, a] = flows
    net.planes[CLASSES, a, b] = net.planes[CLASSES_T, b, a] = current
    if net.sizes[BROKEN] == 0 and not is_same and flows > 0:
        _join(net, a, b, now_s)


@hot
def _pass_on(row, marks, step, rest, pending, filled_at):
    """Update the remaining capacity at the other ports after a level moved by `step`."""
    for x in range(len(row)):
        is_member = marks[x] < np.inf
        rest[x] -= step * row[x] if is_member else 0.0
        pending[x] = filled_at[x] if is_member else pending[x]


@hot
def _is_out_of_order(mine, current, marks, classes, level, full_class):
    """Whether the bottleneck of a pair is not the port with the lower level."""
    hits = 0
    for x in range(len(marks)):
        is_member = np.int64(marks[x] < np.inf)
        is_class = np.int64(classes[x] == current) & np.int64(full_class[x] == current)
        hits += is_class & (
            (np.int64(level[x] < mine) & is_member) | (np.int64(level[x] > mine) & (1 - is_member))
        )
    return hits > 0


@hot
def settle(net, now_s):
    """Update levels after the recorded changes.

    Returns:
        Whether `level` is the solution; otherwise all ports must be refilled.
    """
    num = net.planes.shape[1]
    steps = 0
    while True:
        smallest = smallest_bits(net.port_ids[PENDING])
        if smallest >= NEVER:
            break
        port = smallest & PORT_MASK
        net.port_ids[PENDING, port] = NEVER
        level = net.ports[REST, port] / net.ports[MEMBERS, port]
        step = level - net.ports[LEVEL, port]
        # Equal levels may depend on each other cyclically.
        steps += 1
        if not level > 0.0 or steps > 2 * num:
            return False
        if step != 0.0:
            touch(net, port, now_s)
            net.ports[LEVEL, port] = level
            if port < num:
                _pass_on(
                    net.planes[COUNTS, port],
                    net.marks[port],
                    step,
                    net.ports[REST, num:],
                    net.port_ids[PENDING, num:],
                    net.port_ids[FILLED_AT, num:],
                )
            else:
                _pass_on(
                    net.planes[COUNTS_T, port - num],
                    net.marks[port],
                    step,
                    net.ports[REST, :num],
                    net.port_ids[PENDING, :num],
                    net.port_ids[FILLED_AT, :num],
                )
    overdrawn = 0
    for p in range(2 * num):
        overdrawn += np.int64(net.ports[REST, p] < 0.0)
    if overdrawn > 0:
        return False
    for i in range(net.sizes[NUM_TOUCHED]):
        p = net.port_ids[TOUCHED, i]
        if net.ports[FULL_CLASS, p] == np.inf:
            continue
        if p < num:
            is_wrong = _is_out_of_order(
                net.ports[LEVEL, p],
                net.ports[FULL_CLASS, p],
                net.marks[p],
                net.planes[CLASSES, p],
                net.ports[LEVEL, num:],
                net.ports[FULL_CLASS, num:],
            )
        else:
            is_wrong = _is_out_of_order(
                net.ports[LEVEL, p],
                net.ports[FULL_CLASS, p],
                net.marks[p],
                net.planes[CLASSES_T, p - num],
                net.ports[LEVEL, :num],
                net.ports[FULL_CLASS, :num],
            )
        if is_wrong:
            return False
    return True
