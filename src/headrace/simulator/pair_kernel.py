"""The fast kernel, for policies under which all flows of a machine pair share a rate; see `network`."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot, hot_loop
from headrace.policies.flow.ports import STARVED, fill_ports
from headrace.policies.flow.priority import priority_class
from headrace.simulator.even import share_evenly
from headrace.simulator.network import (
    BROKEN,
    DIRTY,
    TOUCHED,
    aim,
    attach,
    first_port,
    insert,
    mark_dirty,
    move_item,
    pop_item,
    promote,
    set_mark,
    touch,
)
from headrace.simulator.progress_kernel import (
    EVENTS,
    HEAP,
    UNFINISHED,
    deliver,
    draw_volume,
    finish_task,
    pop_task,
    start_ready,
)
from headrace.simulator.repair import MOST_PAIRS, change, settle

OES, MAXMIN, PRIORITY = 0, 1, 2


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
            insert(net, fixed.edge_pair[edge], edge, volume, key)
            return
        if len(progress.flow_end) > 0:
            progress.flow_end[edge, n] = now_s
        progress.num_sent[edge] = n + 1
        deliver(fixed, progress, edge, n)


@hot
def _open_flows(fixed, progress, net, code, task, n, now_s):  # type: ignore[no-untyped-def]
    """Open the flows of a finished task whose predecessors are through (eq. 12)."""
    for k in range(fixed.out_start[task], fixed.out_start[task + 1]):
        edge = fixed.out_edges[k]
        pair = fixed.edge_pair[edge]
        if pair >= 0 and progress.num_sent[edge] == n:
            port = net.bottleneck[net.sender[pair], net.receiver[pair]]
            if port != STARVED:
                touch(net, port, now_s)
            _open_flow(fixed, progress, net, code, edge, now_s)


@hot
def _complete(fixed, progress, net, code, port, now_s):  # type: ignore[no-untyped-def]
    """The port's next mark is reached: a flow ends and the next of its edge opens."""
    num = fixed.num_machines
    x = net.best_at[port]
    a, b = (port, x) if port < num else (x, port - num)
    pair = a * num + b
    net.service[port] = net.best[port]
    net.clock_s[port] = now_s
    first, front, num_open = net.item_start[pair], net.num_front[pair], net.num_open[pair]
    edge = pop_item(net, first, front)
    if front < num_open:
        move_item(net, first + num_open - 1, first + front - 1)
    net.num_front[pair] = front - 1
    net.num_open[pair] = num_open - 1
    mark_dirty(net, pair)
    if front == 1 and num_open > 1:
        promote(net, pair, net.service[port] - net.base[a, b])
    n = progress.num_sent[edge]
    progress.num_sent[edge] = n + 1
    progress.sizes[EVENTS] += 1
    if len(progress.flow_end) > 0:
        progress.flow_end[edge, n] = now_s
    deliver(fixed, progress, edge, n)
    mark = net.item_mark[first] + net.base[a, b] if num_open > 1 else np.inf
    set_mark(net, a, b, port, mark)
    _open_flow(fixed, progress, net, code, edge, now_s)
    aim(net, port)


@hot
def _count(net, code, now_s):  # type: ignore[no-untyped-def]
    """Bring counts, classes and degrees up to date for the pairs that changed; drop those that did not."""
    num = len(net.counts)
    kept = 0
    if net.sizes[DIRTY] > MOST_PAIRS:
        net.sizes[BROKEN] = 1
    for i in range(net.sizes[DIRTY]):
        pair = net.dirty[i]
        net.is_dirty[pair] = False
        a, b = net.sender[pair], net.receiver[pair]
        front = net.num_front[pair]
        grown = front - net.counts[a, b]
        key = net.item_class[net.item_start[pair]] if front > 0 else np.inf
        if grown == 0.0 and key == net.classes[a, b]:
            continue
        net.dirty[kept] = pair
        kept += 1
        net.degree[a] += grown
        net.degree[num + b] += grown
        if code == OES:
            net.counts[a, b] = net.counts_t[b, a] = front
            net.classes[a, b] = net.classes_t[b, a] = key
            touch(net, a, now_s)
            touch(net, num + b, now_s)
        else:
            change(net, a, b, front, key, now_s)
        if front == 0:
            attach(net, a, b, STARVED, now_s)
            net.base[a, b] = 0.0
    net.sizes[DIRTY] = kept


@hot
def _allocate(net, code, now_s):  # type: ignore[no-untyped-def]
    """Recompute rates if the open flows changed.

    Returns:
        Whether they did.
    """
    num = len(net.counts)
    _count(net, code, now_s)
    changed = net.sizes[DIRTY] > 0
    if changed and code == OES:
        share_evenly(net, now_s)
    elif changed:
        num_moves = 0
        if net.sizes[BROKEN] == 1 or not settle(net, now_s):
            num_moves = fill_ports(net)
            net.sizes[BROKEN] = 0
            for p in range(2 * num):
                if net.level[p] != net.rate[p]:
                    touch(net, p, now_s)
        for i in range(net.sizes[TOUCHED]):
            p = net.touched[i]
            net.rate[p] = net.level[p]
        for i in range(num_moves):
            pair = net.moves[i, 0]
            attach(net, net.sender[pair], net.receiver[pair], net.moves[i, 1], now_s)
    net.sizes[DIRTY] = 0
    for i in range(net.sizes[TOUCHED]):
        p = net.touched[i]
        net.is_touched[p] = False
        aim(net, p)
    net.sizes[TOUCHED] = 0
    return changed


@hot
def _note_use(net, use_rate):  # type: ignore[no-untyped-def]
    """Throughput of every NIC at the present rates: in, then out."""
    num = len(net.counts)
    for p in range(2 * num):
        use_rate[p] = 0.0
    for a in range(num):
        for b in range(num):
            if net.bottleneck[a, b] != STARVED:
                given = net.counts[a, b] * net.rate[net.bottleneck[a, b]]
                use_rate[b] += given
                use_rate[num + a] += given


@hot_loop
def run_pairs(fixed, progress, net, code, use_time, use_rate):  # type: ignore[no-untyped-def]
    """Rehearse with `oes`, `maxmin` or `priority`; see `run_flows` for arguments and results."""
    num_use = 0
    now_s = 0.0
    while True:
        start_ready(fixed, progress, now_s)
        while progress.sizes[HEAP] > 0 and progress.heap_time[0] <= now_s:
            task = pop_task(progress)
            n = finish_task(fixed, progress, task, now_s)
            _open_flows(fixed, progress, net, code, task, n, now_s)
            start_ready(fixed, progress, now_s)
        if progress.sizes[UNFINISHED] == 0:
            return now_s, num_use
        changed = _allocate(net, code, now_s)
        if changed and len(use_time) > 0:
            use_time[num_use] = now_s
            _note_use(net, use_rate[num_use])
            num_use += 1
        port = first_port(net)
        next_s = net.next_s[port]
        if progress.sizes[HEAP] > 0:
            next_s = min(next_s, progress.heap_time[0])
        if next_s == np.inf:
            return -1.0, num_use
        now_s = next_s
        while net.next_s[port] <= now_s:
            _complete(fixed, progress, net, code, port, now_s)
            port = first_port(net)
