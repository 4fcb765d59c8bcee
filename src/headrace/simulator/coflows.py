"""Simulation input of a graph of coflows: one iteration of a job whose edges are flows."""

from __future__ import annotations

import numpy as np

from headrace.core.coflows import CoflowGraph
from headrace.core.tasks import FIRST_COFLOW, EdgeKind
from headrace.simulator.instance import Instance


def build_coflow_instance(graph: CoflowGraph) -> tuple[Instance, np.ndarray]:
    """Build the simulation input of a graph of coflows.

    Returns:
        The input, and the coflow of each edge (-1 for waits). Flows come first, in file order.
    """
    cluster, index = graph.cluster, graph.task_index
    machines = {host.name: m for m, host in enumerate(cluster.hosts)}
    flows = [
        (i, flow.src, flow.dst, flow.bytes)
        for i, coflow in enumerate(graph.coflows)
        for flow in coflow.flows
    ]
    num_edges, num_waits = len(flows) + len(graph.waits), len(graph.waits)
    num_bytes = np.array([size for _, _, _, size in flows] + [0.0] * num_waits)
    coflow = np.array([i for i, _, _, _ in flows] + [-1] * num_waits, dtype=np.int64)
    ranks = np.array([*graph.ranks, 0])
    src = [index[name] for _, name, _, _ in flows] + [before for before, _ in graph.waits]
    dst = [index[name] for _, _, name, _ in flows] + [then for _, then in graph.waits]
    task_machine = np.array([machines[task.machine] for task in graph.tasks], dtype=np.int64)
    edge_src, edge_dst = np.array(src, dtype=np.int32), np.array(dst, dtype=np.int32)
    nic_out, nic_in = cluster.nic_out_bytes_per_s(), cluster.nic_in_bytes_per_s()
    crosses = task_machine[edge_src] != task_machine[edge_dst]
    loads = [
        np.bincount(task_machine[end][crosses], num_bytes[crosses], len(machines)) / bandwidth
        for end, bandwidth in ((edge_src, nic_out), (edge_dst, nic_in))
    ]
    instance = Instance(
        num_machines=len(machines),
        num_iterations=1,
        window=0,
        seed=0,
        task_machine=task_machine,
        task_time_s=np.array([task.time for task in graph.tasks]),
        task_table=np.zeros(len(graph.tasks), dtype=np.int32),
        edge_src=edge_src,
        edge_dst=edge_dst,
        edge_lag=np.zeros(num_edges, dtype=np.int8),
        edge_kind=np.where(coflow >= 0, FIRST_COFLOW + ranks[coflow], EdgeKind.ORDER),
        edge_bytes=num_bytes,
        edge_table=np.zeros(num_edges, dtype=np.int32),
        tables=np.ones(1),
        table_start=np.array([0, 1], dtype=np.int64),
        nic_out_bytes_per_s=nic_out,
        nic_in_bytes_per_s=nic_in,
        pace_s=float(np.max(loads)),
    )
    return instance, coflow
