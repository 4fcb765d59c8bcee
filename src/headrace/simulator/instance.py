"""Simulation input as flat arrays for the kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.core.tasks import ROLES, EdgeKind, TaskGraph, build_task_graph
from headrace.costs import edge_volumes, nic_load_s, swap_delays, task_machines, task_times


@dataclass(frozen=True)
class Instance:
    """One placed job as input of a simulation.

    Attributes:
        num_machines: Number of machines.
        num_iterations: Iterations to simulate.
        window: Run-ahead window K; 0 is unlimited.
        seed: Seed of all random draws.
        task_machine: Machine per task.
        task_time_s: Mean time per task and iteration.
        task_table: Index of the factor table of each task's times.
        edge_src: Producing task per edge.
        edge_dst: Consuming task per edge.
        edge_lag: 1 if data of iteration n is consumed in n + 1.
        edge_kind: `EdgeKind` per edge.
        edge_bytes: Mean bytes per edge and iteration.
        edge_table: Index of the factor table of each edge's volumes.
        tables: All factor tables, concatenated.
        table_start: Offset of each table in `tables`, plus the end.
        nic_out_bytes_per_s: Outgoing bandwidth per machine.
        nic_in_bytes_per_s: Incoming bandwidth per machine.
        pace_s: Largest NIC load per iteration; period of `paced`.
    """

    num_machines: int
    num_iterations: int
    window: int
    seed: int
    task_machine: np.ndarray
    task_time_s: np.ndarray
    task_table: np.ndarray
    edge_src: np.ndarray
    edge_dst: np.ndarray
    edge_lag: np.ndarray
    edge_kind: np.ndarray
    edge_bytes: np.ndarray
    edge_table: np.ndarray
    tables: np.ndarray
    table_start: np.ndarray
    nic_out_bytes_per_s: np.ndarray
    nic_in_bytes_per_s: np.ndarray
    pace_s: float

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.task_machine)

    @property
    def num_edges(self) -> int:
        """Number of edges, including those within one machine."""
        return len(self.edge_src)


def build_instance(
    problem: Problem,
    placement: Placement | None,
    *,
    seeds: np.ndarray | None = None,
    num_iterations: int | None = None,
    window: int | None = None,
    seed: int = 0,
) -> tuple[Instance, TaskGraph]:
    """Build the simulation input of a placed job.

    Without a placement, all movable tasks are on the first machine, and resources are ignored.
    `seeds` has shape (num_samplers, num_parts) and is uniform by default. `num_iterations` and
    `window` (0 is unlimited) override the job's.

    Raises:
        SpecError: The arguments do not match each other.
        InfeasibleError: The placement exceeds the resources of a machine.
    """
    cluster, job, profile = problem
    if placement is None:
        placement = Placement(
            samplers=(0,) * job.num_samplers,
            trainers=(0,) * job.trainers,
            servers=(0,) * job.num_servers,
        )
    else:
        placement.check(cluster, job)
    graph = build_task_graph(job, cluster.num_machines, placement.ring_order)
    if seeds is None:
        seeds = problem.uniform_seeds
    machines = task_machines(graph, placement)
    volumes = edge_volumes(graph, problem, seeds)

    tables: list[np.ndarray] = [np.ones(1)]
    known: dict[bytes, int] = {tables[0].tobytes(): 0}

    def table_of(factors: np.ndarray) -> int:
        key = factors.tobytes()
        if key not in known:
            known[key] = len(tables)
            tables.append(factors)
        return known[key]

    edge_table = np.zeros(graph.num_edges, dtype=np.int32)
    edge_table[graph.kind == EdgeKind.GRAPH] = table_of(profile.store_traffic.variation.factors())
    edge_table[graph.kind == EdgeKind.BATCH] = table_of(profile.batch_traffic.variation.factors())
    kinds = [machine.kind for machine in cluster.hosts]
    by_class = {
        (role, kind): table_of(profile.task_time(ROLES[role], kind).variation.factors())
        for role in np.unique(graph.role)
        for kind in set(kinds)
    }
    task_table = np.array(
        [by_class[graph.role[j], kinds[machines[j]]] for j in range(graph.num_tasks)],
        dtype=np.int32,
    )
    times_s = task_times(graph, problem, machines, seeds)
    delays_s = swap_delays(graph, problem)
    for j in np.flatnonzero(delays_s).tolist():
        fixed = delays_s[j] / times_s[j]
        task_table[j] = table_of(fixed + (1 - fixed) * tables[task_table[j]])
    instance = Instance(
        num_machines=cluster.num_machines,
        num_iterations=job.iterations if num_iterations is None else num_iterations,
        window=job.window if window is None else window,
        seed=seed,
        task_machine=machines,
        task_time_s=times_s,
        task_table=task_table,
        edge_src=graph.src,
        edge_dst=graph.dst,
        edge_lag=graph.lag,
        edge_kind=graph.kind,
        edge_bytes=volumes,
        edge_table=edge_table,
        tables=np.concatenate(tables),
        table_start=np.cumsum([0, *(len(table) for table in tables)]).astype(np.int64),
        nic_out_bytes_per_s=cluster.nic_out_bytes_per_s(),
        nic_in_bytes_per_s=cluster.nic_in_bytes_per_s(),
        pace_s=nic_load_s(graph, volumes, machines, cluster),
    )
    return instance, graph
