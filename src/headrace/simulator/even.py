"""`oes` per machine pair: the port with the smaller share is the bottleneck."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot
from headrace.policies.flow.layout import (
    CAPACITY,
    COUNTS,
    COUNTS_T,
    DEGREE,
    DIRTY,
    NUM_DIRTY,
    NUM_TOUCHED,
    RANK,
    RATE,
    RECEIVER,
    SENDER,
    SORTED_PORT,
    SORTED_RATE,
    TOUCHED,
)
from headrace.policies.flow.ports import STARVED
from headrace.simulator.network import LARGE, attach, is_large


@hot
def _smaller_share(net, a, b):
    """Bottleneck of a pair under `oes`; a tie keeps the current one."""
    out_share, in_share = net.ports[RATE, a], net.ports[RATE, net.planes.shape[1] + b]
    if out_share < in_share or (out_share == in_share and net.bottleneck[a, b] == STARVED):
        return a
    if in_share < out_share:
        return net.planes.shape[1] + b
    return net.bottleneck[a, b]


@hot
def _scan_rows(net, num_changed, now_s):
    """Update the shares of the first `num_changed` touched ports and check all their pairs."""
    num = net.planes.shape[1]
    for i in range(num_changed):
        p = net.port_ids[TOUCHED, i]
        share = net.ports[CAPACITY, p] / net.ports[DEGREE, p]
        net.ports[RATE, p] = share if net.ports[DEGREE, p] > 0.5 else 0.0
    for i in range(net.sizes[NUM_DIRTY]):
        pair = net.pairs[DIRTY, i]
        a, b = net.pairs[SENDER, pair], net.pairs[RECEIVER, pair]
        if net.planes[COUNTS, a, b] > 0.0 and net.bottleneck[a, b] == STARVED:
            attach(net, a, b, _smaller_share(net, a, b), now_s)
    for i in range(num_changed):
        p = net.port_ids[TOUCHED, i]
        counts = net.planes[COUNTS, p] if p < num else net.planes[COUNTS_T, p - num]
        others = net.ports[RATE, num:] if p < num else net.ports[RATE, :num]
        marks = net.marks[p]
        mine = net.ports[RATE, p]
        hits = 0
        for x in range(num):
            is_member = np.int64(marks[x] < np.inf)
            hits += np.int64(counts[x] > 0.0) & (
                (np.int64(others[x] < mine) & is_member)
                | (np.int64(mine < others[x]) & (1 - is_member))
            )
        if hits > 0:
            for x in range(num):
                if counts[x] > 0.0:
                    a, b = (p, x) if p < num else (x, p - num)
                    port = _smaller_share(net, a, b)
                    if port != net.bottleneck[a, b]:
                        attach(net, a, b, port, now_s)


@hot
def _resort(net, p, old):
    """Restore the order of one port in its side, which is sorted by share."""
    num = net.planes.shape[1]
    side = 0 if p < num else 1
    first = side * num
    rates = net.ports[SORTED_RATE, first : first + num]
    ports = net.port_ids[SORTED_PORT, first : first + num]
    new = net.ports[RATE, p]
    i = net.port_ids[RANK, p]
    if new > old:
        while i + 1 < num and rates[i + 1] < new:
            rates[i], ports[i] = rates[i + 1], ports[i + 1]
            net.port_ids[RANK, ports[i]] = i
            i += 1
    else:
        while i > 0 and rates[i - 1] > new:
            rates[i], ports[i] = rates[i - 1], ports[i - 1]
            net.port_ids[RANK, ports[i]] = i
            i -= 1
    rates[i], ports[i], net.port_ids[RANK, p] = new, p, i


@hot
def _sort_all(net):
    """Insertion sort of both sides by share; called rarely or on nearly sorted data."""
    num = net.planes.shape[1]
    for side in range(2):
        first = side * num
        rates = net.ports[SORTED_RATE, first : first + num]
        ports = net.port_ids[SORTED_PORT, first : first + num]
        for k in range(num):
            p = ports[k]
            rate = net.ports[RATE, p]
            i = k
            while i > 0 and rates[i - 1] > rate:
                rates[i], ports[i] = rates[i - 1], ports[i - 1]
                i -= 1
            rates[i], ports[i] = rate, p
        for k in range(num):
            net.port_ids[RANK, ports[k]] = k


@hot
def _visit_between(net, p, low, high, now_s):
    """Check the pairs of a port whose other port has a share between `low` and `high`."""
    num = net.planes.shape[1]
    side = 1 if p < num else 0
    first = side * num
    rates = net.ports[SORTED_RATE, first : first + num]
    ports = net.port_ids[SORTED_PORT, first : first + num]
    i, end = 0, num
    while i < end:
        middle = (i + end) >> 1
        if rates[middle] < low:
            i = middle + 1
        else:
            end = middle
    while i < num and rates[i] <= high:
        x = ports[i]
        a, b = (p, x - num) if p < num else (x, p - num)
        if net.bottleneck[a, b] != STARVED:
            port = _smaller_share(net, a, b)
            if port != net.bottleneck[a, b]:
                attach(net, a, b, port, now_s)
        i += 1


@hot
def share_evenly(net, now_s):
    """Update the shares of touched ports and the bottlenecks of their pairs.

    A pair's bottleneck changes only if the share of one port passes the other's. In large networks
    ports are kept sorted by share and are updated one by one, so each checks only the ports it
    passes.
    """
    num_changed = net.sizes[NUM_TOUCHED]
    if not is_large(net):
        _scan_rows(net, num_changed, now_s)
    elif num_changed > LARGE:
        _scan_rows(net, num_changed, now_s)
        _sort_all(net)
    else:
        for i in range(num_changed):
            p = net.port_ids[TOUCHED, i]
            old = net.ports[RATE, p]
            new = (
                net.ports[CAPACITY, p] / net.ports[DEGREE, p] if net.ports[DEGREE, p] > 0.5 else 0.0
            )
            if new != old:
                net.ports[RATE, p] = new
                _resort(net, p, old)
                _visit_between(net, p, min(old, new), max(old, new), now_s)
        for i in range(net.sizes[NUM_DIRTY]):
            pair = net.pairs[DIRTY, i]
            a, b = net.pairs[SENDER, pair], net.pairs[RECEIVER, pair]
            if net.planes[COUNTS, a, b] > 0.0 and net.bottleneck[a, b] == STARVED:
                attach(net, a, b, _smaller_share(net, a, b), now_s)
