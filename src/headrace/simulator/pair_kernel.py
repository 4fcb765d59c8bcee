"""Fast kernel for policies under which all flows of a machine pair have the same rate."""

from __future__ import annotations

import numpy as np

from headrace.policies.compiled import hot, hot_loop, warm
from headrace.policies.flow.layout import (
    BASE,
    BEST,
    BEST_AT,
    BROKEN,
    CLASSES,
    CLASSES_T,
    CLOCK_S,
    COUNTS,
    COUNTS_T,
    DEGREE,
    DIRTY,
    IS_DIRTY,
    IS_TOUCHED,
    ITEM_CLASS,
    ITEM_MARK,
    LEVEL,
    NEXT_S,
    NUM_DIRTY,
    NUM_FRONT,
    NUM_OPEN,
    NUM_TOUCHED,
    RATE,
    RECEIVER,
    SENDER,
    SERVICE,
    TOUCHED,
)
from headrace.policies.flow.ports import STARVED, fill_ports
from headrace.policies.flow.priority import priority_class
from headrace.simulator.even import share_evenly
from headrace.simulator.instance import Instance
from headrace.simulator.network import (
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
    EDGE_KIND,
    EDGE_SRC,
    END,
    EVENTS,
    HEAP,
    LATEST_TIE,
    OUT,
    START,
    UNFINISHED,
    deliver,
    draw_volume,
    finish_task,
    pop_task,
    start_ready,
)
from headrace.simulator.repair import MOST_PAIRS, change, settle

OES, MAXMIN, PRIORITY = 0, 1, 2

_COMPLETION_S, _PAIR_S = 20e-6, 3e-6
"""Seconds per completion, and per completion and pair of machines, if interpreted (measured)."""


def interpreted_s(instance: Instance) -> float:
    """Estimated seconds of a simulation by interpreted code."""
    num_completions = instance.num_iterations * (instance.num_tasks + instance.num_edges)
    return num_completions * (_COMPLETION_S + _PAIR_S * instance.num_machines**2)


@warm
def _open_flow(fixed, progress, net, code, edge, now_s):
    """Open the next flow of an edge; empty flows complete at once."""
    while progress.num_sent[edge] < progress.num_done[fixed.edges[EDGE_SRC, edge]]:
        n = progress.num_sent[edge]
        volume = draw_volume(fixed, edge, n)
        if progress.flow_times.shape[1] > 0:
            progress.flow_times[START, edge, n] = now_s
        if volume > 0.0:
            key = 0.0
            if code == PRIORITY:
                key = float(priority_class(fixed.edges[EDGE_KIND, edge], n))
            insert(net, fixed.edge_pair[edge], edge, volume, key)
            return
        if progress.flow_times.shape[1] > 0:
            progress.flow_times[END, edge, n] = now_s
        progress.num_sent[edge] = n + 1
        deliver(fixed, progress, edge, n)


@hot
def _open_flows(fixed, progress, net, code, task, n, now_s):
    """Open the flows of a finished task whose predecessors are complete (eq. 12)."""
    for k in range(fixed.starts[OUT, task], fixed.starts[OUT, task + 1]):
        edge = fixed.lists[OUT, k]
        pair = fixed.edge_pair[edge]
        if pair >= 0 and progress.num_sent[edge] == n:
            port = net.bottleneck[net.pairs[SENDER, pair], net.pairs[RECEIVER, pair]]
            if port != STARVED:
                touch(net, port, now_s)
            _open_flow(fixed, progress, net, code, edge, now_s)


@hot
def _complete(fixed, progress, net, code, port, now_s):
    """Complete the flow at the port's next mark and open the next flow of its edge."""
    num = fixed.num_machines
    x = net.port_ids[BEST_AT, port]
    a, b = (port, x) if port < num else (x, port - num)
    pair = a * num + b
    net.ports[SERVICE, port] = net.ports[BEST, port]
    net.ports[CLOCK_S, port] = now_s
    first, front, num_open = (
        net.item_start[pair],
        net.pairs[NUM_FRONT, pair],
        net.pairs[NUM_OPEN, pair],
    )
    edge = pop_item(net, first, front)
    if front < num_open:
        move_item(net, first + num_open - 1, first + front - 1)
    net.pairs[NUM_FRONT, pair] = front - 1
    net.pairs[NUM_OPEN, pair] = num_open - 1
    mark_dirty(net, pair)
    if front == 1 and num_open > 1:
        promote(net, pair, net.ports[SERVICE, port] - net.planes[BASE, a, b])
    n = progress.num_sent[edge]
    progress.num_sent[edge] = n + 1
    progress.sizes[EVENTS] += 1
    if progress.flow_times.shape[1] > 0:
        progress.flow_times[END, edge, n] = now_s
    deliver(fixed, progress, edge, n)
    mark = net.items[ITEM_MARK, first] + net.planes[BASE, a, b] if num_open > 1 else np.inf
    set_mark(net, a, b, port, mark)
    _open_flow(fixed, progress, net, code, edge, now_s)
    aim(net, port)


@hot
def _count(net, even, now_s):
    """Update counts, classes and degrees of changed pairs; drop unchanged pairs."""
    num = net.planes.shape[1]
    kept = 0
    if net.sizes[NUM_DIRTY] > MOST_PAIRS:
        net.sizes[BROKEN] = 1
    for i in range(net.sizes[NUM_DIRTY]):
        pair = net.pairs[DIRTY, i]
        net.pairs[IS_DIRTY, pair] = False
        a, b = net.pairs[SENDER, pair], net.pairs[RECEIVER, pair]
        front = net.pairs[NUM_FRONT, pair]
        grown = front - net.planes[COUNTS, a, b]
        key = net.items[ITEM_CLASS, net.item_start[pair]] if front > 0 else np.inf
        if grown == 0.0 and key == net.planes[CLASSES, a, b]:
            continue
        net.pairs[DIRTY, kept] = pair
        kept += 1
        net.ports[DEGREE, a] += grown
        net.ports[DEGREE, num + b] += grown
        if even is None:
            change(net, a, b, front, key, now_s)
        else:
            net.planes[COUNTS, a, b] = net.planes[COUNTS_T, b, a] = front
            net.planes[CLASSES, a, b] = net.planes[CLASSES_T, b, a] = key
            touch(net, a, now_s)
            touch(net, num + b, now_s)
        if front == 0:
            attach(net, a, b, STARVED, now_s)
            net.planes[BASE, a, b] = 0.0
    net.sizes[NUM_DIRTY] = kept


@hot
def _allocate(net, even, now_s):
    """Recompute rates if the open flows changed; return whether they did."""
    num = net.planes.shape[1]
    _count(net, even, now_s)
    changed = net.sizes[NUM_DIRTY] > 0
    if even is None:
        if changed:
            num_moves = 0
            if net.sizes[BROKEN] == 1 or not settle(net, now_s):
                num_moves = fill_ports(net)
                net.sizes[BROKEN] = 0
                for p in range(2 * num):
                    if net.ports[LEVEL, p] != net.ports[RATE, p]:
                        touch(net, p, now_s)
            for i in range(net.sizes[NUM_TOUCHED]):
                p = net.port_ids[TOUCHED, i]
                net.ports[RATE, p] = net.ports[LEVEL, p]
            for i in range(num_moves):
                pair = net.moves[i, 0]
                attach(
                    net, net.pairs[SENDER, pair], net.pairs[RECEIVER, pair], net.moves[i, 1], now_s
                )
    elif changed:
        share_evenly(net, now_s)
    net.sizes[NUM_DIRTY] = 0
    for i in range(net.sizes[NUM_TOUCHED]):
        p = net.port_ids[TOUCHED, i]
        net.port_ids[IS_TOUCHED, p] = False
        aim(net, p)
    net.sizes[NUM_TOUCHED] = 0
    return changed


@hot
def _record_use(net, use_rate):
    """Throughput of each NIC at the current rates: in, then out."""
    num = net.planes.shape[1]
    for p in range(2 * num):
        use_rate[p] = 0.0
    for a in range(num):
        for b in range(num):
            if net.bottleneck[a, b] != STARVED:
                given = net.planes[COUNTS, a, b] * net.ports[RATE, net.bottleneck[a, b]]
                use_rate[b] += given
                use_rate[num + a] += given


@hot_loop
def run_pairs(fixed, progress, net, code, even, use_time, use_rate):
    """Simulate with `oes`, `maxmin` or `priority`, as `run_flows`.

    Times of rate changes are written to `use_time`, unless it is empty, and NIC throughput from
    then on (in, then out, per machine) to `use_rate`. Returns the makespan, or -1 on deadlock, and
    the number of rows in `use_time`.

    `even` is None unless the policy is `oes`: numba prunes branches by argument type, so each
    family of policies compiles only its own code.
    """
    num_use = 0
    now_s = 0.0
    while True:
        start_ready(fixed, progress, now_s)
        while progress.sizes[HEAP] > 0 and progress.heap_time[0] <= now_s * LATEST_TIE:
            task = pop_task(progress)
            n = finish_task(fixed, progress, task, now_s)
            _open_flows(fixed, progress, net, code, task, n, now_s)
            start_ready(fixed, progress, now_s)
        if progress.sizes[UNFINISHED] == 0:
            return now_s, num_use
        changed = _allocate(net, even, now_s)
        if changed and len(use_time) > 0:
            use_time[num_use] = now_s
            _record_use(net, use_rate[num_use])
            num_use += 1
        port = first_port(net)
        next_s = net.ports[NEXT_S, port]
        if progress.sizes[HEAP] > 0:
            next_s = min(next_s, progress.heap_time[0])
        if next_s == np.inf:
            return -1.0, num_use
        now_s = next_s
        while net.ports[NEXT_S, port] <= now_s * LATEST_TIE:
            _complete(fixed, progress, net, code, port, now_s)
            port = first_port(net)
