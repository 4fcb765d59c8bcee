"""Task scheduling of both kernels: readiness, deliveries and window credits.

Every dependency costs one increment: `arrived[j, n]` counts in-edges that delivered data for (j,
n), `released[j, n]` counts consumers of j that finished iteration n.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.policies.compiled import hot, hot_loop
from headrace.simulator.draws import draw_index
from headrace.simulator.instance import Instance


class Fixed(NamedTuple):
    """Constant input of a simulation; see `Instance`. CSR lists hold edges by task."""

    num_machines: int
    num_iterations: int
    window: int
    seed: int
    task_time_s: Any
    task_table: Any
    edges: Any
    """Source, target, lag, kind and table per edge, one row each."""
    edge_bytes: Any
    edge_pair: Any
    tables: Any
    table_start: Any
    starts: Any
    lists: Any
    """Edges by task, outgoing and incoming; `starts` holds the offsets."""
    nics: Any
    """Bandwidths, outgoing and incoming."""


class Progress(NamedTuple):
    """Mutable state: counters, the heap of running tasks, and the candidates to start next."""

    num_done: Any
    running: Any
    arrived: Any
    released: Any
    num_sent: Any
    heap_time: Any
    heap_task: Any
    candidates: Any
    sizes: Any
    """Heap size, number of candidates, unfinished tasks, events."""
    iteration_end: Any
    task_times: Any
    flow_times: Any
    """Starts and ends by task or edge and iteration; empty if not recorded."""


EDGE_SRC, EDGE_DST, EDGE_LAG, EDGE_KIND, EDGE_TABLE = range(5)
OUT, IN = range(2)
START, END = range(2)
HEAP, CANDIDATES, UNFINISHED, EVENTS = 0, 1, 2, 3

LATEST_TIE = 1.0 + 1e-12
"""Events up to this factor later are simultaneous: they differ by rounding. Otherwise a flow with a
rounding error left could be starved by a flow of an earlier class that opens at the same time."""

DRAW_S = 10e-6
"""Seconds per random draw, if interpreted."""


def fix(instance: Instance) -> Fixed:
    """Convert an instance to the kernel layout."""
    src, dst = instance.task_machine[instance.edge_src], instance.task_machine[instance.edge_dst]
    is_flow = (src != dst) & (instance.edge_kind != 5)
    by_src = np.argsort(instance.edge_src, kind="stable").astype(np.int32)
    by_dst = np.argsort(instance.edge_dst, kind="stable").astype(np.int32)
    tasks = np.arange(instance.num_tasks + 1)
    return Fixed(
        num_machines=instance.num_machines,
        num_iterations=instance.num_iterations,
        window=instance.window,
        seed=instance.seed,
        task_time_s=instance.task_time_s,
        task_table=instance.task_table,
        edges=np.array(
            [
                instance.edge_src,
                instance.edge_dst,
                instance.edge_lag,
                instance.edge_kind,
                instance.edge_table,
            ],
            dtype=np.int32,
        ),
        edge_bytes=instance.edge_bytes,
        edge_pair=np.where(is_flow, src * instance.num_machines + dst, -1).astype(np.int32),
        tables=instance.tables,
        table_start=instance.table_start,
        starts=np.array(
            [
                np.searchsorted(instance.edge_src[by_src], tasks),
                np.searchsorted(instance.edge_dst[by_dst], tasks),
            ],
            dtype=np.int64,
        ),
        lists=np.array([by_src, by_dst], dtype=np.int32),
        nics=np.array(
            [instance.nic_out_bytes_per_s, instance.nic_in_bytes_per_s], dtype=np.float64
        ),
    )


def start(instance: Instance, record: bool) -> Progress:
    """State at time 0: initial parameters are delivered, all tasks are to be checked."""
    num_tasks, num_edges, num_iterations = (
        instance.num_tasks,
        instance.num_edges,
        instance.num_iterations,
    )
    arrived = np.zeros((num_tasks, num_iterations), dtype=np.int32)
    np.add.at(arrived[:, 0], instance.edge_dst[instance.edge_lag == 1], 1)
    has_window = instance.window > 0
    tasks_shape = (2, num_tasks, num_iterations) if record else (2, 0, 0)
    edges_shape = (2, num_edges, num_iterations) if record else (2, 0, 0)
    candidates = np.zeros(2 * num_tasks + num_edges + 1, dtype=np.int32)
    candidates[:num_tasks] = np.arange(num_tasks)[::-1]
    return Progress(
        num_done=np.zeros(num_tasks, dtype=np.int32),
        running=np.zeros(num_tasks, dtype=np.bool_),
        arrived=arrived,
        released=np.zeros((num_tasks if has_window else 0, num_iterations), dtype=np.int32),
        num_sent=np.zeros(num_edges, dtype=np.int32),
        heap_time=np.empty(num_tasks + 1),
        heap_task=np.empty(num_tasks + 1, dtype=np.int32),
        candidates=candidates,
        sizes=np.array([0, num_tasks, num_tasks, 0], dtype=np.int64),
        iteration_end=np.zeros(num_iterations),
        task_times=np.full(tasks_shape, np.nan),
        flow_times=np.full(edges_shape, np.nan),
    )


@hot
def draw_volume(fixed, edge, iteration):
    """Bytes of one flow."""
    table = fixed.edges[EDGE_TABLE, edge]
    first = fixed.table_start[table]
    length = fixed.table_start[table + 1] - first
    if length == 1:
        return fixed.edge_bytes[edge]
    index = draw_index(fixed.seed, edge, iteration, length)
    return fixed.edge_bytes[edge] * fixed.tables[first + index]


@hot
def draw_duration(fixed, task, iteration):
    """Seconds of one task execution."""
    table = fixed.task_table[task]
    first = fixed.table_start[table]
    length = fixed.table_start[table + 1] - first
    if length == 1:
        return fixed.task_time_s[task]
    index = draw_index(fixed.seed, fixed.edges.shape[1] + task, iteration, length)
    return fixed.task_time_s[task] * fixed.tables[first + index]


@hot
def push_task(progress, time_s, task):
    """Add a running task to the heap, ordered by (end, task)."""
    times, tasks = progress.heap_time, progress.heap_task
    i = progress.sizes[HEAP]
    progress.sizes[HEAP] = i + 1
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] < time_s or (times[parent] == time_s and tasks[parent] < task):
            break
        times[i] = times[parent]
        tasks[i] = tasks[parent]
        i = parent
    times[i] = time_s
    tasks[i] = task


@hot
def pop_task(progress):
    """Pop the task that ends first."""
    times, tasks = progress.heap_time, progress.heap_task
    first = tasks[0]
    size = progress.sizes[HEAP] - 1
    progress.sizes[HEAP] = size
    time_s, task = times[size], tasks[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            times[right] < times[child]
            or (times[right] == times[child] and tasks[right] < tasks[child])
        ):
            child = right
        if time_s < times[child] or (time_s == times[child] and task < tasks[child]):
            break
        times[i] = times[child]
        tasks[i] = tasks[child]
        i = child
    times[i] = time_s
    tasks[i] = task
    return first


@hot
def add_candidate(progress, task):
    """Schedule a readiness check of a task."""
    size = progress.sizes[CANDIDATES]
    progress.candidates[size] = task
    progress.sizes[CANDIDATES] = size + 1


@hot
def deliver(fixed, progress, edge, iteration):
    """Deliver data of a producer's iteration to the consumer."""
    needed_in = iteration + fixed.edges[EDGE_LAG, edge]
    if needed_in < fixed.num_iterations:
        task = fixed.edges[EDGE_DST, edge]
        progress.arrived[task, needed_in] += 1
        if progress.arrived[task, needed_in] == fixed.starts[IN, task + 1] - fixed.starts[IN, task]:
            add_candidate(progress, task)


@hot
def start_ready(fixed, progress, now_s):
    """Start all scheduled tasks that are ready."""
    while progress.sizes[CANDIDATES] > 0:
        progress.sizes[CANDIDATES] -= 1
        task = progress.candidates[progress.sizes[CANDIDATES]]
        n = progress.num_done[task]
        if progress.running[task] or n >= fixed.num_iterations:
            continue
        if progress.arrived[task, n] < fixed.starts[IN, task + 1] - fixed.starts[IN, task]:
            continue
        if 0 < fixed.window <= n and (
            progress.released[task, n - fixed.window]
            < fixed.starts[OUT, task + 1] - fixed.starts[OUT, task]
        ):
            continue
        progress.running[task] = True
        if progress.task_times.shape[1] > 0:
            progress.task_times[START, task, n] = now_s
        push_task(progress, now_s + draw_duration(fixed, task, n), task)


@hot
def finish_task(fixed, progress, task, now_s):
    """Finish an execution, deliver local data, grant window credits; return the iteration."""
    n = progress.num_done[task]
    progress.num_done[task] = n + 1
    progress.running[task] = False
    progress.sizes[EVENTS] += 1
    progress.iteration_end[n] = max(progress.iteration_end[n], now_s)
    if progress.task_times.shape[1] > 0:
        progress.task_times[END, task, n] = now_s
    if n + 1 == fixed.num_iterations:
        progress.sizes[UNFINISHED] -= 1
    add_candidate(progress, task)
    if fixed.window > 0:
        for k in range(fixed.starts[IN, task], fixed.starts[IN, task + 1]):
            producer = fixed.edges[EDGE_SRC, fixed.lists[IN, k]]
            progress.released[producer, n] += 1
            if progress.released[producer, n] == (
                fixed.starts[OUT, producer + 1] - fixed.starts[OUT, producer]
            ):
                add_candidate(progress, producer)
    for k in range(fixed.starts[OUT, task], fixed.starts[OUT, task + 1]):
        edge = fixed.lists[OUT, k]
        if fixed.edge_pair[edge] < 0:
            deliver(fixed, progress, edge, n)
    return n


@hot_loop
def sum_bytes(fixed, num_sent, nic_bytes):
    """Bytes of completed flows per machine: in, then out."""
    for edge in range(len(num_sent)):
        pair = fixed.edge_pair[edge]
        if pair >= 0:
            total = 0.0
            for n in range(num_sent[edge]):
                total += draw_volume(fixed, edge, n)
            nic_bytes[0, pair % fixed.num_machines] += total
            nic_bytes[1, pair // fixed.num_machines] += total


@hot_loop
def draw_volumes(fixed, volumes):
    """Bytes of all flows, shape (num_edges, num_iterations)."""
    for edge in range(volumes.shape[0]):
        for n in range(volumes.shape[1]):
            volumes[edge, n] = draw_volume(fixed, edge, n)
