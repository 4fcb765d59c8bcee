"""Small traces written by hand, and larger ones made up at random."""

from __future__ import annotations

import numpy as np

from headrace.core.job import Job, Sync
from headrace.core.tasks import ROLES, EdgeKind, build_task_graph
from headrace.core.trace import Executions, Flows, NicUse, Trace


def tiny_trace() -> Trace:
    """Two machines, one trainer with its sampler on m1, a server on m0; two iterations."""
    return Trace(
        task_names=("store0", "store1", "sampler0.0", "trainer0", "ps0"),
        task_roles=("store", "store", "sampler", "trainer", "ps"),
        task_machines=np.array([0, 1, 1, 1, 0]),
        machine_names=("m0", "m1"),
        nic_in_bytes_per_s=np.array([1.25e9, 1.25e9]),
        nic_out_bytes_per_s=np.array([1.25e9, 6.25e9]),
        executions=Executions(
            task=np.array([0, 1, 0, 1, 2, 3, 4, 2]),
            iteration=np.array([0, 0, 1, 1, 0, 0, 0, 1]),
            start_s=np.array([0.0, 0.0, 0.01, 0.01, 0.03, 0.04, 0.061, 0.062]),
            end_s=np.array([0.01, 0.01, 0.02, 0.02, 0.04, 0.06, 0.062, 0.072]),
        ),
        flows=Flows(
            src=np.array([0, 0, 3, 4]),
            dst=np.array([2, 2, 4, 3]),
            iteration=np.array([0, 1, 0, 0]),
            num_bytes=np.array([25e6, 25e6, 1e6, 1e6]),
            start_s=np.array([0.01, 0.03, 0.06, 0.062]),
            end_s=np.array([0.03, 0.05, 0.061, np.nan]),
        ),
        nic_use=NicUse(
            time_s=np.array([0.0, 0.01, 0.05, 0.06, 0.061]),
            in_bytes_per_s=np.array([[0, 0], [0, 1.25e9], [0, 0], [1e9, 0], [0, 1e9]]),
            out_bytes_per_s=np.array([[0, 0], [1.25e9, 0], [0, 0], [0, 1e9], [1e9, 0]]),
        ),
    )


def random_trace(num_machines: int, trainers: int, sync: Sync, iterations: int = 3) -> Trace:
    """A job's tasks one iteration after the other, and flows at random times."""
    rng = np.random.default_rng(num_machines * 1000 + trainers)
    job = Job(trainers=trainers, samplers_per_trainer=2, sync=sync, batch_size=10)
    graph = build_task_graph(job, num_machines)
    machines = rng.integers(0, num_machines, graph.num_tasks)
    machines[:num_machines] = np.arange(num_machines)
    # A trainer's ring steps run one after the other on its machine; the barrier takes no time.
    ring = np.arange(graph.first_ring, graph.num_tasks)
    machines[ring] = machines[graph.first_trainer + graph.owner[ring]]
    begin = np.zeros(graph.num_tasks)
    length = rng.uniform(0.001, 0.01, graph.num_tasks)
    if len(ring):
        begin[ring[1:]] = 0.02 + 0.001 * ((ring[1:] - ring[1]) // trainers)
        length[ring[1:]] = 0.001
        length[ring[0]] = 0.0
    task, iteration = (
        grid.ravel() for grid in np.meshgrid(np.arange(graph.num_tasks), np.arange(iterations))
    )
    start = begin[task] + iteration
    by_start = np.lexsort((task, start))
    task, iteration, start = task[by_start], iteration[by_start], start[by_start]
    remote = np.flatnonzero(
        (machines[graph.src] != machines[graph.dst]) & (graph.kind != EdgeKind.ORDER)
    )
    edge, at = (grid.ravel() for grid in np.meshgrid(remote, np.arange(iterations)))
    opened = at + rng.uniform(0, 0.5, len(edge))
    order = np.argsort(opened, kind="stable")
    edge, at, opened = edge[order], at[order], opened[order]
    return Trace(
        task_names=graph.names,
        task_roles=tuple(ROLES[code].value for code in graph.role),
        task_machines=machines,
        machine_names=tuple(f"m{m}" for m in range(num_machines)),
        nic_in_bytes_per_s=np.full(num_machines, 1.25e9),
        nic_out_bytes_per_s=np.full(num_machines, 1.25e9),
        executions=Executions(task, iteration, start, start + length[task]),
        flows=Flows(
            src=graph.src[edge],
            dst=graph.dst[edge],
            iteration=at,
            num_bytes=rng.uniform(1e3, 1e8, len(edge)),
            start_s=opened,
            end_s=opened + rng.uniform(0, 0.5, len(edge)),
        ),
    )
