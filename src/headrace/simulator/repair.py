"""Mend `maxmin` and `priority` rates after a small change instead of filling all ports anew.

A port that is full has a level and serves the flows of one class, its members, at that level:

    level = (capacity - what flows limited elsewhere take) / members = rest / members

Most events leave every pair at its bottleneck, and only some levels move. So the change is booked at the two ports
of its pair, new levels run through the ports in the order in which they filled up, and the result is accepted if it
has the property that makes it the only solution: every flow has a full port where nobody of its class gets more and
nobody of a later class gets anything, and no port gives more than it has. If not, the ports are filled anew, which
also ends the drift of the sums kept here.
"""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot
from headrace.policies.flow.ports import NEVER, PORT_MASK, STARVED, smallest_bits
from headrace.simulator.network import BROKEN, TOUCHED, attach, touch

LAST = 1 << 60
"""Later than what `fill_ports` gives; the port is in the lower half."""
MOST_PAIRS = 4
"""Pairs that may change at once; beyond, all ports are filled anew. A guess, not tuned."""


@hot
def _book(net, port, num_members, other, taken):  # type: ignore[no-untyped-def]
    """A port gets members, its partner has less left for its own; both levels must be looked at."""
    net.members[port] += num_members
    net.pending[port] = net.filled_at[port]
    net.rest[other] -= taken
    net.pending[other] = net.filled_at[other]


@hot
def _has_later(classes, current):  # type: ignore[no-untyped-def]
    """Whether a port has flows of a later class."""
    hits = 0
    for x in range(len(classes)):
        hits += np.int64(classes[x] > current) & np.int64(classes[x] < np.inf)
    return hits > 0


@hot
def _serve_next(net, port, row, classes, full_class, now_s):  # type: ignore[no-untyped-def]
    """A port has no members any more: the next class that waits for it alone gets it."""
    num = len(row)
    done = net.full_class[port]
    current = np.inf
    for x in range(num):
        if done < classes[x] < current and full_class[x] >= classes[x]:
            current = classes[x]
    net.full_class[port] = current
    net.level[port] = 0.0
    net.members[port] = 0.0
    net.filled_at[port] = NEVER
    if current < np.inf:
        net.filled_at[port] = LAST + port
        for x in range(num):
            if classes[x] == current and full_class[x] >= current:
                a, b = (port, x) if port < num else (x, port - num)
                net.members[port] += row[x]
                attach(net, a, b, port, now_s)
    net.pending[port] = net.filled_at[port]


@hot
def _leave(net, a, b, now_s):  # type: ignore[no-untyped-def]
    """A pair's class has no flows any more; counts and classes are still the old ones."""
    num = len(net.counts)
    port = net.bottleneck[a, b]
    other = num + b if port == a else a
    flows = net.counts[a, b]
    _book(net, port, -flows, other, -flows * net.level[port])
    attach(net, a, b, STARVED, now_s)
    if net.members[port] < 0.5:
        if port == a:
            _serve_next(net, port, net.counts[a], net.classes[a], net.full_class[num:], now_s)
        else:
            _serve_next(net, port, net.counts_t[b], net.classes_t[b], net.full_class[:num], now_s)


@hot
def _join(net, a, b, now_s):  # type: ignore[no-untyped-def]
    """A pair has flows of another class than before; counts and classes are already the new ones."""
    num = len(net.counts)
    flows, current = net.counts[a, b], net.classes[a, b]
    first = min(net.full_class[a], net.full_class[num + b])
    if first < current:
        return
    if first > current:
        port = a if net.rest[a] < net.rest[num + b] else num + b
        classes = net.classes[a] if port == a else net.classes_t[b]
        if first < np.inf or _has_later(classes, current):
            net.sizes[BROKEN] = 1
            return
        net.full_class[port] = current
        net.members[port] = 0.0
        net.filled_at[port] = LAST + port
    elif net.full_class[a] != current:
        port = num + b
    elif net.full_class[num + b] != current:
        port = a
    else:
        port = a if net.level[a] < net.level[num + b] else num + b
    other = num + b if port == a else a
    _book(net, port, flows, other, flows * net.level[port])
    attach(net, a, b, port, now_s)


@hot
def change(net, a, b, flows, current, now_s):  # type: ignore[no-untyped-def]
    """Book a change of a pair's first class or of its number of flows.

    Args:
        net: The network.
        a: Sending machine.
        b: Receiving machine.
        flows: Flows of the first class from now on.
        current: The class; infinity if there are no flows.
        now_s: Present time.
    """
    num = len(net.counts)
    port = net.bottleneck[a, b]
    is_same = current == net.classes[a, b]
    if net.sizes[BROKEN] == 0 and port != STARVED:
        if is_same:
            grown = flows - net.counts[a, b]
            other = num + b if port == a else a
            _book(net, port, grown, other, grown * net.level[port])
        else:
            _leave(net, a, b, now_s)
    net.counts[a, b] = net.counts_t[b, a] = flows
    net.classes[a, b] = net.classes_t[b, a] = current
    if net.sizes[BROKEN] == 0 and not is_same and flows > 0:
        _join(net, a, b, now_s)


@hot
def _pass_on(row, marks, step, rest, pending, filled_at):  # type: ignore[no-untyped-def]
    """A port's level moved by `step`: its members leave less at their other ends."""
    for x in range(len(row)):
        is_member = marks[x] < np.inf
        rest[x] -= step * row[x] if is_member else 0.0
        pending[x] = filled_at[x] if is_member else pending[x]


@hot
def _is_out_of_order(mine, current, marks, classes, level, full_class):  # type: ignore[no-untyped-def]
    """Whether one of a port's pairs gets less than the port's members, or a member less than elsewhere."""
    hits = 0
    for x in range(len(marks)):
        is_member = np.int64(marks[x] < np.inf)
        is_class = np.int64(classes[x] == current) & np.int64(full_class[x] == current)
        hits += is_class & (
            (np.int64(level[x] < mine) & is_member) | (np.int64(level[x] > mine) & (1 - is_member))
        )
    return hits > 0


@hot
def settle(net, now_s):  # type: ignore[no-untyped-def]
    """Move levels after the booked changes.

    Returns:
        Whether `level` holds the solution; otherwise all ports must be filled anew.
    """
    num = len(net.counts)
    steps = 0
    while True:
        smallest = smallest_bits(net.pending)
        if smallest >= NEVER:
            break
        port = smallest & PORT_MASK
        net.pending[port] = NEVER
        level = net.rest[port] / net.members[port]
        step = level - net.level[port]
        # Equal levels may depend on each other in a circle.
        steps += 1
        if not level > 0.0 or steps > 2 * num:
            return False
        if step != 0.0:
            touch(net, port, now_s)
            net.level[port] = level
            if port < num:
                _pass_on(
                    net.counts[port],
                    net.marks[port],
                    step,
                    net.rest[num:],
                    net.pending[num:],
                    net.filled_at[num:],
                )
            else:
                _pass_on(
                    net.counts_t[port - num],
                    net.marks[port],
                    step,
                    net.rest[:num],
                    net.pending[:num],
                    net.filled_at[:num],
                )
    overdrawn = 0
    for p in range(2 * num):
        overdrawn += np.int64(net.rest[p] < 0.0)
    if overdrawn > 0:
        return False
    for i in range(net.sizes[TOUCHED]):
        p = net.touched[i]
        if net.full_class[p] == np.inf:
            continue
        if p < num:
            is_wrong = _is_out_of_order(
                net.level[p],
                net.full_class[p],
                net.marks[p],
                net.classes[p],
                net.level[num:],
                net.full_class[num:],
            )
        else:
            is_wrong = _is_out_of_order(
                net.level[p],
                net.full_class[p],
                net.marks[p],
                net.classes_t[p - num],
                net.level[:num],
                net.full_class[:num],
            )
        if is_wrong:
            return False
    return True
