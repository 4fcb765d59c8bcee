"""The fast kernel, for policies under which all flows of a machine pair share a rate.

A port has a service clock: bytes it has given each of its member flows so far. A pair belongs to the port that is
its bottleneck, so a flow's completion is a fixed mark on that clock and a change of rate touches ports, not flows.
Marks live in one small heap per pair, on the pair's own clock: `base` is the difference between the two, so a pair
moves from port to port in constant time. Under `priority` a pair's heap holds its first class only; flows of later
classes wait behind it in the same stretch of memory, with the bytes they have left instead of a mark.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.policies.compiled import hot, hot_loop
from headrace.policies.flow.classes import fill_classes
from headrace.policies.flow.ports import STARVED, fill_pairs
from headrace.policies.flow.priority import priority_class
from headrace.simulator.progress_kernel import (
    EVENTS,
    HEAP,
    UNFINISHED,
    Fixed,
    deliver,
    draw_volume,
    finish_task,
    pop_task,
    start_ready,
)

OES, MAXMIN, PRIORITY = 0, 1, 2


class Network(NamedTuple):
    """Open flows per pair and the clocks of the ports; port a sends, port M + b receives."""

    counts: Any
    counts_t: Any
    classes: Any
    classes_t: Any
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
    keys: Any
    """Next mark per port and partner on the port's clock; infinity for pairs that are not members."""
    best: Any
    best_at: Any
    rate: Any
    service: Any
    clock_s: Any
    next_s: Any
    is_dirty: Any
    dirty: Any
    is_touched: Any
    touched: Any
    sizes: Any
    """dirty pairs, touched ports, pairs with flows"""
    order: Any
    """pairs with flows by class, for `priority`"""
    tree: Any
    """winner tree over the ports' next completions"""
    left: Any
    free: Any
    is_open: Any
    share: Any
    row: Any
    level: Any
    moves: Any


DIRTY, TOUCHED, ACTIVE = 0, 1, 2


def _winners(num_ports: int) -> np.ndarray:
    """Leaves are ports (the last one repeated), inner nodes the winner of their two children."""
    size = 1 << max(1, (num_ports - 1).bit_length())
    tree = np.zeros(2 * size, dtype=np.int32)
    tree[size:] = np.minimum(np.arange(size), num_ports - 1)
    for i in range(size - 1, 0, -1):
        tree[i] = tree[2 * i]
    return tree


def idle_network(fixed: Fixed) -> Network:
    """A network without open flows."""
    num = fixed.num_machines
    pairs, edges_of_pair = np.unique(fixed.edge_pair[fixed.edge_pair >= 0], return_counts=True)
    per_pair = np.zeros(num * num, dtype=np.int64)
    per_pair[pairs] = edges_of_pair
    num_items = int(per_pair.sum())
    ports = 2 * num
    return Network(
        counts=np.zeros((num, num)),
        counts_t=np.zeros((num, num)),
        classes=np.full((num, num), np.inf),
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
        keys=np.full((ports, num), np.inf),
        best=np.full(ports, np.inf),
        best_at=np.zeros(ports, dtype=np.int32),
        rate=np.zeros(ports),
        service=np.zeros(ports),
        clock_s=np.zeros(ports),
        next_s=np.full(ports, np.inf),
        is_dirty=np.zeros(num * num, dtype=np.bool_),
        dirty=np.zeros(num * num, dtype=np.int32),
        is_touched=np.zeros(ports, dtype=np.bool_),
        touched=np.zeros(ports, dtype=np.int32),
        sizes=np.zeros(3, dtype=np.int64),
        order=np.zeros(num * num, dtype=np.int32),
        tree=_winners(ports),
        left=np.zeros(ports),
        free=np.zeros(ports),
        is_open=np.zeros(ports),
        share=np.zeros(ports),
        row=np.zeros(num),
        level=np.zeros(ports),
        moves=np.zeros((2 * num * num, 2), dtype=np.int32),
    )


@hot
def _touch(net, port, now_s):  # type: ignore[no-untyped-def]
    """Bring a port's clock up to now and remember to look for its next completion."""
    if not net.is_touched[port]:
        net.is_touched[port] = True
        net.touched[net.sizes[TOUCHED]] = port
        net.sizes[TOUCHED] += 1
        net.service[port] += net.rate[port] * (now_s - net.clock_s[port])
        net.clock_s[port] = now_s


@hot
def _aim(net, port):  # type: ignore[no-untyped-def]
    """Find a port's next completion; its clock must be up to date."""
    keys = net.keys[port]
    best = keys[0]
    at = 0
    for x in range(1, len(keys)):
        if keys[x] < best:
            best = keys[x]
            at = x
    net.best[port] = best
    net.best_at[port] = at
    next_s = np.inf
    if best < np.inf and net.rate[port] > 0.0:
        next_s = net.clock_s[port] + (best - net.service[port]) / net.rate[port]
    if next_s != net.next_s[port]:
        net.next_s[port] = next_s
        node = (len(net.tree) // 2 + port) >> 1
        while node > 0:
            left, right = net.tree[2 * node], net.tree[2 * node + 1]
            net.tree[node] = left if net.next_s[left] <= net.next_s[right] else right
            node >>= 1


@hot
def _set_key(net, a, b, port, key):  # type: ignore[no-untyped-def]
    if port == a:
        net.keys[port, b] = key
    else:
        net.keys[port, a] = key


@hot
def _served(net, a, b):  # type: ignore[no-untyped-def]
    """The pair's own clock; its port's clock must be up to date."""
    port = net.bottleneck[a, b]
    return net.base[a, b] if port == STARVED else net.service[port] - net.base[a, b]


@hot
def _attach(net, a, b, port, now_s):  # type: ignore[no-untyped-def]
    """Move a pair to another bottleneck."""
    old = net.bottleneck[a, b]
    if old != STARVED:
        _touch(net, old, now_s)
        _set_key(net, a, b, old, np.inf)
    served = _served(net, a, b)
    net.bottleneck[a, b] = port
    if port == STARVED:
        net.base[a, b] = served
        return
    _touch(net, port, now_s)
    net.base[a, b] = net.service[port] - served
    head = net.item_mark[net.item_start[a * len(net.counts) + b]]
    _set_key(net, a, b, port, head + net.base[a, b])


@hot
def _sift_up(net, first, i, mark, edge):  # type: ignore[no-untyped-def]
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
def _pop_front(net, first, size):  # type: ignore[no-untyped-def]
    """Remove the smallest mark of a heap of `size`; leaves a hole at its end."""
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
def _promote(net, pair, served):  # type: ignore[no-untyped-def]
    """The front is empty: the first class among the waiting flows becomes the front."""
    first, num_open = net.item_start[pair], net.num_open[pair]
    current = np.inf
    for i in range(first, first + num_open):
        current = min(current, net.item_class[i])
    front = 0
    for i in range(num_open):
        if net.item_class[first + i] == current:
            mark, edge = net.item_mark[first + i] + served, net.item_edge[first + i]
            net.item_mark[first + i] = net.item_mark[first + front]
            net.item_edge[first + i] = net.item_edge[first + front]
            net.item_class[first + i] = net.item_class[first + front]
            net.item_class[first + front] = current
            _sift_up(net, first, front, mark, edge)
            front += 1
    net.num_front[pair] = front


@hot
def _insert(net, code, pair, edge, volume, key, now_s):  # type: ignore[no-untyped-def]
    """Add a flow to its pair."""
    num_machines = len(net.counts)
    a, b = pair // num_machines, pair % num_machines
    first = net.item_start[pair]
    front, num_open = net.num_front[pair], net.num_open[pair]
    port = net.bottleneck[a, b]
    if port != STARVED:
        _touch(net, port, now_s)
    served = _served(net, a, b)
    if code == PRIORITY and num_open > 0:
        current = net.item_class[first]
        if key < current:
            for i in range(first, first + front):
                net.item_mark[i] -= served
            net.item_mark[first + num_open] = net.item_mark[first]
            net.item_edge[first + num_open] = net.item_edge[first]
            net.item_class[first + num_open] = current
            front = 0
        elif key > current:
            net.item_mark[first + num_open] = volume
            net.item_edge[first + num_open] = edge
            net.item_class[first + num_open] = key
            net.num_open[pair] = num_open + 1
            return
        elif front < num_open:
            net.item_mark[first + num_open] = net.item_mark[first + front]
            net.item_edge[first + num_open] = net.item_edge[first + front]
            net.item_class[first + num_open] = net.item_class[first + front]
    net.item_class[first + front] = key
    _sift_up(net, first, front, served + volume, edge)
    net.num_front[pair] = front + 1
    net.num_open[pair] = num_open + 1
    if port != STARVED:
        _set_key(net, a, b, port, net.item_mark[first] + net.base[a, b])
    if not net.is_dirty[pair]:
        net.is_dirty[pair] = True
        net.dirty[net.sizes[DIRTY]] = pair
        net.sizes[DIRTY] += 1


@hot
def _open_flow(fixed, progress, net, code, edge, now_s):  # type: ignore[no-untyped-def]
    """Open the next flow of an edge; flows without bytes complete at once."""
    while progress.num_sent[edge] < progress.num_done[fixed.edge_src[edge]]:
        n = progress.num_sent[edge]
        volume = draw_volume(fixed, edge, n)
        if len(progress.flow_start) > 0:
            progress.flow_start[edge, n] = now_s
        if volume > 0.0:
            key = 0.0
            if code == PRIORITY:
                key = float(priority_class(fixed.edge_kind[edge], n))
            _insert(net, code, fixed.edge_pair[edge], edge, volume, key, now_s)
            return
        if len(progress.flow_end) > 0:
            progress.flow_end[edge, n] = now_s
        progress.num_sent[edge] = n + 1
        deliver(fixed, progress, edge, n)


@hot
def _complete(fixed, progress, net, code, port, now_s):  # type: ignore[no-untyped-def]
    """The port's next mark is reached: a flow ends and the next of its edge opens."""
    num_machines = fixed.num_machines
    x = net.best_at[port]
    a, b = (port, x) if port < num_machines else (x, port - num_machines)
    pair = a * num_machines + b
    _touch(net, port, now_s)
    net.service[port] = net.best[port]
    first, front, num_open = net.item_start[pair], net.num_front[pair], net.num_open[pair]
    edge = _pop_front(net, first, front)
    if front < num_open:
        net.item_mark[first + front - 1] = net.item_mark[first + num_open - 1]
        net.item_edge[first + front - 1] = net.item_edge[first + num_open - 1]
        net.item_class[first + front - 1] = net.item_class[first + num_open - 1]
    net.num_front[pair] = front - 1
    net.num_open[pair] = num_open - 1
    if not net.is_dirty[pair]:
        net.is_dirty[pair] = True
        net.dirty[net.sizes[DIRTY]] = pair
        net.sizes[DIRTY] += 1
    if front == 1 and num_open > 1:
        _promote(net, pair, net.service[port] - net.base[a, b])
    n = progress.num_sent[edge]
    progress.num_sent[edge] = n + 1
    progress.sizes[EVENTS] += 1
    if len(progress.flow_end) > 0:
        progress.flow_end[edge, n] = now_s
    deliver(fixed, progress, edge, n)
    _set_key(net, a, b, port, np.inf)
    if net.num_open[pair] > 0:
        _set_key(net, a, b, port, net.item_mark[first] + net.base[a, b])
    _open_flow(fixed, progress, net, code, edge, now_s)
    _aim(net, port)


@hot
def _share_evenly(net, num_changed, now_s):  # type: ignore[no-untyped-def]
    """`oes`: levels of the first `num_changed` touched ports, and pairs whose smaller share changed sides."""
    num_machines = len(net.counts)
    for i in range(num_changed):
        p = net.touched[i]
        net.rate[p] = net.capacity[p] / net.degree[p] if net.degree[p] > 0.5 else 0.0
    for i in range(num_changed):
        p = net.touched[i]
        row = net.counts[p] if p < num_machines else net.counts_t[p - num_machines]
        for x in range(num_machines):
            if row[x] > 0.0:
                a, b = (p, x) if p < num_machines else (x, p - num_machines)
                out_share, in_share = net.rate[a], net.rate[num_machines + b]
                port = net.bottleneck[a, b]
                if out_share < in_share:
                    port = a
                elif in_share < out_share:
                    port = num_machines + b
                elif port == STARVED:
                    port = a
                if port != net.bottleneck[a, b]:
                    _attach(net, a, b, port, now_s)


@hot
def _reorder(net, pair, old, new):  # type: ignore[no-untyped-def]
    """Keep pairs sorted by class; infinity means that the pair has no flows."""
    num_machines = len(net.counts)
    size = net.sizes[ACTIVE]
    if old == np.inf:
        at = size
        size += 1
    else:
        at = 0
        while net.order[at] != pair:
            at += 1
    if new == np.inf:
        size -= 1
        for i in range(at, size):
            net.order[i] = net.order[i + 1]
    else:
        while at > 0:
            before = net.order[at - 1]
            if net.classes[before // num_machines, before % num_machines] <= new:
                break
            net.order[at] = before
            at -= 1
        while at < size - 1:
            after = net.order[at + 1]
            if net.classes[after // num_machines, after % num_machines] >= new:
                break
            net.order[at] = after
            at += 1
        net.order[at] = pair
    net.sizes[ACTIVE] = size


@hot
def _allocate(net, code, now_s):  # type: ignore[no-untyped-def]
    """Recompute rates for the pairs that changed.

    Returns:
        Whether any rate may have changed.
    """
    num_machines = len(net.counts)
    changed = False
    for i in range(net.sizes[DIRTY]):
        pair = net.dirty[i]
        net.is_dirty[pair] = False
        a, b = pair // num_machines, pair % num_machines
        front = net.num_front[pair]
        grown = front - net.counts[a, b]
        key = net.item_class[net.item_start[pair]] if front > 0 else np.inf
        if grown == 0.0 and key == net.classes[a, b]:
            continue
        changed = True
        if code == PRIORITY and key != net.classes[a, b]:
            _reorder(net, pair, net.classes[a, b], key)
        net.counts[a, b] = front
        net.counts_t[b, a] = front
        net.classes[a, b] = key
        net.classes_t[b, a] = key
        net.degree[a] += grown
        net.degree[num_machines + b] += grown
        if code == OES:
            _touch(net, a, now_s)
            _touch(net, num_machines + b, now_s)
        if front == 0:
            _attach(net, a, b, STARVED, now_s)
            net.base[a, b] = 0.0
    net.sizes[DIRTY] = 0
    if changed:
        if code == OES:
            _share_evenly(net, net.sizes[TOUCHED], now_s)
        else:
            for p in range(2 * num_machines):
                net.left[p] = net.capacity[p]
                net.free[p] = net.degree[p]
            if code == MAXMIN:
                num_moves = fill_pairs(
                    net.counts,
                    net.counts_t,
                    net.left,
                    net.free,
                    net.is_open,
                    net.share,
                    net.level,
                    net.bottleneck,
                    net.moves,
                )
            else:
                num_moves = fill_classes(
                    net.order,
                    net.sizes[ACTIVE],
                    net.counts,
                    net.counts_t,
                    net.classes,
                    net.classes_t,
                    net.left,
                    net.free,
                    net.is_open,
                    net.share,
                    net.row,
                    net.level,
                    net.bottleneck,
                    net.moves,
                )
            for p in range(2 * num_machines):
                if net.level[p] != net.rate[p]:
                    _touch(net, p, now_s)
                    net.rate[p] = net.level[p]
            for i in range(num_moves):
                pair = net.moves[i, 0]
                _attach(net, pair // num_machines, pair % num_machines, net.moves[i, 1], now_s)
    for i in range(net.sizes[TOUCHED]):
        p = net.touched[i]
        net.is_touched[p] = False
        _aim(net, p)
    net.sizes[TOUCHED] = 0
    return changed


@hot_loop
def run_pairs(fixed, progress, net, code, use_time, use_rate):  # type: ignore[no-untyped-def]
    """Rehearse with `oes`, `maxmin` or `priority`; see `run_flows` for arguments and results."""
    num_machines = fixed.num_machines
    num_ports = 2 * num_machines
    now_s = 0.0
    num_use = 0
    while True:
        start_ready(fixed, progress, now_s)
        while progress.sizes[HEAP] > 0 and progress.heap_time[0] <= now_s:
            task = pop_task(progress)
            n = finish_task(fixed, progress, task, now_s)
            for k in range(fixed.out_start[task], fixed.out_start[task + 1]):
                edge = fixed.out_edges[k]
                if fixed.edge_pair[edge] >= 0 and progress.num_sent[edge] == n:
                    _open_flow(fixed, progress, net, code, edge, now_s)
            start_ready(fixed, progress, now_s)
        if progress.sizes[UNFINISHED] == 0:
            break
        changed = _allocate(net, code, now_s)
        if changed and len(use_time) > 0:
            use_time[num_use] = now_s
            for p in range(num_ports):
                use_rate[num_use, p] = 0.0
            for a in range(num_machines):
                for b in range(num_machines):
                    if net.bottleneck[a, b] != STARVED:
                        given = net.counts[a, b] * net.rate[net.bottleneck[a, b]]
                        use_rate[num_use, b] += given
                        use_rate[num_use, num_machines + a] += given
            num_use += 1
        next_s = net.next_s[net.tree[1]]
        if progress.sizes[HEAP] > 0:
            next_s = min(next_s, progress.heap_time[0])
        if next_s == np.inf:
            return -1.0, num_use
        now_s = max(now_s, next_s)
        while net.next_s[net.tree[1]] <= now_s:
            _complete(fixed, progress, net, code, net.tree[1], now_s)
    return now_s, num_use
