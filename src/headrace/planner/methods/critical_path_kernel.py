"""Critical path of the execution DAG (DGTP, eqs 26-27), compiled.

Stores have no predecessors, and samplers and their flows do not depend on trainers. The path is
therefore computed in two passes: all iterations up to the trainers' inboxes, vectorised over
samplers, then the trainers with their servers or ring. A pair on one machine has weight 0, which
delivers at once because a producer never finishes before its previous iteration.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import njit

from headrace.policies.compiled import hot, hot_loop
from headrace.simulator.draws import draw_index

_OPTIONS: dict[str, Any] = {
    "error_model": "numpy",
    "_nrt": False,
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
    "fastmath": {"nnan", "nsz"},
}
"""Options of `hot` plus no NaN and no -0, which LLVM needs to vectorise maxima."""


class PathModel(NamedTuple):
    """Placement-independent data; S samplers, W trainers, M machines, N iterations."""

    nic_out: Any
    nic_in: Any
    time_s: Any
    """Mean time per role code and machine."""
    sampler_scale: Any
    trainer_scale: Any
    store_end_s: Any
    """End times of stores, shape (N, M)."""
    graph_bytes: Any
    """Drawn store to sampler volumes, shape (N, M, S)."""
    batch_bytes: Any
    """Drawn sampler to trainer volumes, shape (N, S)."""
    graph_total: Any
    """Sum over all iterations, shape (S, M)."""
    batch_total: Any
    has_graph: Any
    """1 where a store sends to a sampler, shape (S, M)."""
    sends_graph: Any
    """Number of samplers each store sends to."""
    gets_graph: Any
    """Number of stores that send to each sampler."""
    has_batch: Any
    sync_bytes: float
    """Bytes of one gradient, parameter or ring flow."""
    num_servers: int
    num_steps: int
    """Ring steps; 0 without a ring."""
    ring_width: int
    """Chunks of one trainer in transit together; 0 without a ring."""


class PathScratch(NamedTuple):
    """Preallocated work arrays."""

    deg_out: Any
    deg_in: Any
    slow_out: Any
    slow_in: Any
    slow_here: Any
    graph_weight: Any
    batch_weight: Any
    graph_end: Any
    arrived: Any
    sampler_time: Any
    sampler_end: Any
    batch_end: Any
    inbox: Any
    trainer_end: Any
    params: Any
    sync_weight: Any
    sent: Any
    returned: Any
    server_end: Any
    order: Any
    step_end: Any
    step_sent: Any
    out_bytes: Any
    in_bytes: Any


@hot_loop
def draw_path_volumes(seed, edge_bytes, edge_table, tables, table_start, volumes):
    """Volumes of the first edges, drawn as in a simulation with this seed, shape (edges, N)."""
    for edge in range(volumes.shape[0]):
        first = table_start[edge_table[edge]]
        length = table_start[edge_table[edge] + 1] - first
        for n in range(volumes.shape[1]):
            factor = 1.0
            if length > 1:
                factor = tables[first + draw_index(seed, edge, n, length)]
            volumes[edge, n] = edge_bytes[edge] * factor


@hot
def _order_ring(model, trainers, order):
    """Trainers sorted by machine, then number, as `Placement.ring_order`."""
    num = 0
    for m in range(len(model.nic_out)):
        for w in range(len(trainers)):
            if trainers[w] == m:
                order[num] = w
                num += 1


@hot
def _count_degrees(model, machines, scratch):
    """Flows per port and iteration (eqs 21, 22); ring chunks only if in transit together."""
    deg_out, deg_in = scratch.deg_out, scratch.deg_in
    num_samplers, num_trainers = len(model.sampler_scale), len(model.trainer_scale)
    per_trainer = num_samplers // num_trainers
    for m in range(len(deg_out)):
        deg_out[m] = model.sends_graph[m]
        deg_in[m] = 0.0
    for s in range(num_samplers):
        b = machines[s]
        deg_out[b] -= model.has_graph[s, b]
        deg_in[b] += model.gets_graph[s] - model.has_graph[s, b]
        c = machines[num_samplers + s // per_trainer]
        if b != c:
            deg_out[b] += model.has_batch[s]
            deg_in[c] += model.has_batch[s]
    if model.sync_bytes > 0.0:
        trainers = machines[num_samplers : num_samplers + num_trainers]
        servers = machines[num_samplers + num_trainers :]
        for p in range(len(servers)):
            for w in range(num_trainers):
                a, b = trainers[w], servers[p]
                if a != b:
                    deg_out[a] += 1.0
                    deg_in[b] += 1.0
                    deg_out[b] += 1.0
                    deg_in[a] += 1.0
        if model.ring_width > 0:
            for i in range(num_trainers):
                a = trainers[scratch.order[i]]
                b = trainers[scratch.order[(i + 1) % num_trainers]]
                if a != b:
                    deg_out[a] += model.ring_width
                    deg_in[b] += model.ring_width


@hot
def _weight(scratch, a, b):
    """Seconds per byte from machine a to machine b (eq. 26)."""
    if a == b:
        return 0.0
    return max(scratch.slow_out[a], scratch.slow_in[b])


@njit(**_OPTIONS)
def _fill_inboxes(model, machines, scratch):
    """Arrival time of each iteration's batches per trainer."""
    num_iterations, num_machines, num_samplers = model.graph_bytes.shape
    num_trainers = len(model.trainer_scale)
    per_trainer = num_samplers // num_trainers
    slow_here, arrived = scratch.slow_here, scratch.arrived
    sampler_time, sampler_end = scratch.sampler_time, scratch.sampler_end
    batch_end, batch_weight = scratch.batch_end, scratch.batch_weight
    for s in range(num_samplers):
        b = machines[s]
        slow_here[s] = scratch.slow_in[b]
        sampler_time[s] = model.time_s[1, b] * model.sampler_scale[s]
        batch_weight[s] = _weight(scratch, b, machines[num_samplers + s // per_trainer])
        sampler_end[s] = 0.0
        batch_end[s] = 0.0
    for m in range(num_machines):
        slow, weight, end = scratch.slow_out[m], scratch.graph_weight[m], scratch.graph_end[m]
        for s in range(num_samplers):
            weight[s] = slow if slow > slow_here[s] else slow_here[s]
            end[s] = 0.0
    for s in range(num_samplers):
        scratch.graph_weight[machines[s], s] = 0.0
    for n in range(num_iterations):
        for s in range(num_samplers):
            arrived[s] = sampler_end[s]
        for m in range(num_machines):
            ready = model.store_end_s[n, m]
            volume, weight, end = (
                model.graph_bytes[n, m],
                scratch.graph_weight[m],
                scratch.graph_end[m],
            )
            for s in range(num_samplers):
                begun = ready if ready > end[s] else end[s]
                done = begun + volume[s] * weight[s]
                end[s] = done
                arrived[s] = done if done > arrived[s] else arrived[s]
        volume = model.batch_bytes[n]
        for s in range(num_samplers):
            done = arrived[s] + sampler_time[s]
            sampler_end[s] = done
            begun = done if done > batch_end[s] else batch_end[s]
            batch_end[s] = begun + volume[s] * batch_weight[s]
        for w in range(num_trainers):
            latest = 0.0
            for s in range(w * per_trainer, (w + 1) * per_trainer):
                latest = batch_end[s] if batch_end[s] > latest else latest
            scratch.inbox[n, w] = latest


@hot
def _train_with_servers(model, machines, scratch):
    num_samplers, num_trainers = len(model.sampler_scale), len(model.trainer_scale)
    num_servers = model.num_servers
    trainers = machines[num_samplers : num_samplers + num_trainers]
    servers = machines[num_samplers + num_trainers :]
    end, params, server_end = scratch.trainer_end, scratch.params, scratch.server_end
    sent, returned = scratch.sent, scratch.returned
    there, back = scratch.sync_weight[0], scratch.sync_weight[1]
    for p in range(num_servers):
        server_end[p] = 0.0
        for w in range(num_trainers):
            there[p, w] = model.sync_bytes * _weight(scratch, trainers[w], servers[p])
            back[p, w] = model.sync_bytes * _weight(scratch, servers[p], trainers[w])
            sent[p, w] = 0.0
            returned[p, w] = 0.0
    last = 0.0
    for n in range(len(model.batch_bytes)):
        for w in range(num_trainers):
            begun = max(end[w], params[w], scratch.inbox[n, w])
            end[w] = begun + model.time_s[2, trainers[w]] * model.trainer_scale[w]
            params[w] = 0.0
        for p in range(num_servers):
            ready = server_end[p]
            for w in range(num_trainers):
                sent[p, w] = max(sent[p, w], end[w]) + there[p, w]
                ready = max(ready, sent[p, w])
            server_end[p] = ready + model.time_s[3, servers[p]]
            last = max(last, server_end[p])
            for w in range(num_trainers):
                returned[p, w] = max(returned[p, w], server_end[p]) + back[p, w]
                params[w] = max(params[w], returned[p, w])
    return last


@hot
def _train_in_ring(model, machines, scratch):
    """Training with a ring; ring arrays are indexed by ring position."""
    num_samplers, num_trainers = len(model.sampler_scale), len(model.trainer_scale)
    trainers, order = machines[num_samplers:], scratch.order
    end, params = scratch.trainer_end, scratch.params
    step_end, sent = scratch.step_end, scratch.step_sent
    weight, step_time = scratch.sync_weight[0, 0], scratch.sync_weight[1, 0]
    num_steps = len(step_end)
    for i in range(num_trainers):
        a, b = trainers[order[i]], trainers[order[(i + 1) % num_trainers]]
        weight[i] = model.sync_bytes * _weight(scratch, a, b)
        step_time[i] = model.time_s[4, a]
        for k in range(num_steps):
            step_end[k, i] = 0.0
            sent[k, i] = 0.0
    last = 0.0
    for n in range(len(model.batch_bytes)):
        barrier = 0.0
        for i in range(num_trainers):
            w = order[i]
            begun = max(end[i], params[i], scratch.inbox[n, w])
            end[i] = begun + model.time_s[2, trainers[w]] * model.trainer_scale[w]
            barrier = max(barrier, end[i])
        last = max(last, barrier)
        for k in range(num_steps):
            for i in range(num_trainers):
                ready = barrier
                if k > 0:
                    ready = max(step_end[k - 1, i], sent[k - 1, i - 1])
                step_end[k, i] = max(step_end[k, i], ready) + step_time[i]
            for i in range(num_trainers):
                sent[k, i] = max(sent[k, i], step_end[k, i]) + weight[i]
        for i in range(num_trainers):
            if num_steps > 0:
                params[i] = max(step_end[num_steps - 1, i], sent[num_steps - 1, i - 1])
                last = max(last, step_end[num_steps - 1, i])
    return last


@hot_loop
def path_length_s(model, machines, scratch):
    """Length of the critical path; `machines` lists samplers, trainers, servers."""
    num_samplers, num_trainers = len(model.sampler_scale), len(model.trainer_scale)
    if model.num_servers == 0:
        trainers = machines[num_samplers : num_samplers + num_trainers]
        _order_ring(model, trainers, scratch.order)
    _count_degrees(model, machines, scratch)
    for m in range(len(model.nic_out)):
        scratch.slow_out[m] = scratch.deg_out[m] / model.nic_out[m]
        scratch.slow_in[m] = scratch.deg_in[m] / model.nic_in[m]
    _fill_inboxes(model, machines, scratch)
    for w in range(num_trainers):
        scratch.trainer_end[w] = 0.0
        scratch.params[w] = 0.0
    if model.num_servers > 0:
        return _train_with_servers(model, machines, scratch)
    return _train_in_ring(model, machines, scratch)


@hot
def _carry(scratch, a, b, num_bytes):
    if a != b:
        scratch.out_bytes[a] += num_bytes
        scratch.in_bytes[b] += num_bytes


@hot
def least_makespan_s(model, machines, scratch):
    """Lower bound of the makespan: each NIC must transfer the bytes of all iterations.

    Data of the last iteration for a following one is excluded: parameters, and the last ring chunk.
    """
    num_samplers, num_trainers = len(model.sampler_scale), len(model.trainer_scale)
    per_trainer = num_samplers // num_trainers
    num_iterations = len(model.batch_bytes)
    out_bytes, in_bytes = scratch.out_bytes, scratch.in_bytes
    for m in range(len(out_bytes)):
        out_bytes[m] = 0.0
        in_bytes[m] = 0.0
    for s in range(num_samplers):
        b = machines[s]
        for m in range(len(out_bytes)):
            _carry(scratch, m, b, model.graph_total[s, m])
        _carry(scratch, b, machines[num_samplers + s // per_trainer], model.batch_total[s])
    for w in range(num_trainers):
        a = machines[num_samplers + w]
        for p in range(model.num_servers):
            b = machines[num_samplers + num_trainers + p]
            _carry(scratch, a, b, model.sync_bytes * num_iterations)
            _carry(scratch, b, a, model.sync_bytes * (num_iterations - 1))
        if model.num_steps > 0:
            i, j = scratch.order[w], scratch.order[(w + 1) % num_trainers]
            num_chunks = model.num_steps * num_iterations - 1
            _carry(
                scratch,
                machines[num_samplers + i],
                machines[num_samplers + j],
                model.sync_bytes * num_chunks,
            )
    least_s = 0.0
    for m in range(len(out_bytes)):
        least_s = max(least_s, out_bytes[m] / model.nic_out[m], in_bytes[m] / model.nic_in[m])
    return least_s
