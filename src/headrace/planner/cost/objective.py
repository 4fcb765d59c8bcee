"""Objective of a placement: steady-state time per iteration and its limits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.job import Job, Sync
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.core.tasks import EdgeKind, TaskGraph, build_task_graph
from headrace.costs import edge_volumes, nic_loads, task_machines, task_times


@dataclass(frozen=True)
class Objective:
    """Limits of the time per iteration in seconds, for mean times and volumes.

    Attributes:
        nic_s: Largest NIC load: bytes through a NIC divided by its bandwidth.
        busiest_nic: The NIC with this load, e.g. `m2 in`.
        cycle_s: Time between parameter updates: trainer, gradients, servers and parameters, or
            trainer and ring; in a full-graph job, with all swaps and layers.
        task_s: Longest task.
        latency_s: Time of a batch through two adjacent stages; divided by the window.
        window: Run-ahead window K; 0 is unlimited.
    """

    nic_s: float
    busiest_nic: str
    cycle_s: float
    task_s: float
    latency_s: float
    window: int

    @property
    def time_s(self) -> float:
        """T: the largest limit."""
        waiting_s = self.latency_s / self.window if self.window else 0.0
        return max(self.nic_s, self.cycle_s, self.task_s, waiting_s)

    @property
    def limit(self) -> str:
        """Name of the largest limit: `nic`, `cycle`, `task` or `latency`."""
        if self.time_s == self.nic_s:
            return "nic"
        if self.time_s == self.cycle_s:
            return "cycle"
        return "task" if self.time_s == self.task_s else "latency"


def evaluate(
    problem: Problem,
    placement: Placement,
    seeds: np.ndarray | None = None,
    window: int | None = None,
) -> Objective:
    """Compute the objective of a placement.

    `seeds` has shape (num_samplers, num_parts) and is uniform by default. `window` overrides the
    job's.
    """
    cluster, job, _ = problem
    if seeds is None:
        seeds = problem.uniform_seeds
    graph = build_task_graph(job, cluster.num_machines, placement.ring_order)
    machines = task_machines(graph, placement)
    volumes = edge_volumes(graph, problem, seeds)
    times = task_times(graph, problem, machines, seeds)
    load_in, load_out = nic_loads(graph, volumes, machines, cluster)
    m = int(np.argmax(np.maximum(load_in, load_out)))
    direction = "in" if load_in[m] >= load_out[m] else "out"
    transfer = _Transfers(graph, volumes, machines, cluster)
    stores = times[: graph.first_sampler].max()
    samplers = times[graph.first_sampler : graph.first_trainer]
    trainers = times[graph.first_trainer : graph.first_server]
    cycle_s = float(trainers.max()) + _sync_s(job, graph, times, transfer)
    cycle_s += _swaps_s(graph, times, transfer)
    fetch_s = stores + transfer.drain_s(EdgeKind.GRAPH) + samplers.max()
    hand_over_s = samplers.max() + transfer.drain_s(EdgeKind.BATCH) + trainers.max()
    return Objective(
        nic_s=float(max(load_in.max(), load_out.max())),
        busiest_nic=f"{cluster.hosts[m].name} {direction}",
        cycle_s=cycle_s,
        task_s=float(times.max()),
        latency_s=float(max(fetch_s, hand_over_s)),
        window=job.window if window is None else window,
    )


class _Transfers:
    """Transfer times of one edge kind per iteration, without competing traffic."""

    def __init__(
        self, graph: TaskGraph, volumes: np.ndarray, machines: np.ndarray, cluster: Cluster
    ) -> None:
        self._kind = graph.kind
        self._src, self._dst = machines[graph.src], machines[graph.dst]
        self._volumes = np.where(self._src != self._dst, volumes, 0.0)
        self._nic_in, self._nic_out = cluster.nic_in_bytes_per_s(), cluster.nic_out_bytes_per_s()

    def drain_s(self, kind: EdgeKind) -> float:
        """Time until the busiest NIC has transferred all flows of a kind."""
        chosen = self._kind == kind
        num = len(self._nic_in)
        volumes = self._volumes[chosen]
        received = np.bincount(self._dst[chosen], weights=volumes, minlength=num)
        sent = np.bincount(self._src[chosen], weights=volumes, minlength=num)
        return float(max((received / self._nic_in).max(), (sent / self._nic_out).max()))

    def swaps_s(self, num_swaps: int) -> np.ndarray:
        """Times until the busiest NIC has transferred the flows of each swap of rows."""
        chosen, num = self._kind == EdgeKind.SWAP, len(self._nic_in)
        src, dst, volumes = (
            each[chosen].reshape(num_swaps, -1) for each in (self._src, self._dst, self._volumes)
        )
        return np.array(
            [
                max(
                    (np.bincount(dst[k], volumes[k], num) / self._nic_in).max(),
                    (np.bincount(src[k], volumes[k], num) / self._nic_out).max(),
                )
                for k in range(num_swaps)
            ]
        )

    def longest_s(self, kind: EdgeKind) -> float:
        """Time of the slowest single flow of a kind at full rate."""
        chosen = (self._kind == kind) & (self._volumes > 0)
        if not chosen.any():
            return 0.0
        rate = np.minimum(self._nic_out[self._src[chosen]], self._nic_in[self._dst[chosen]])
        return float((self._volumes[chosen] / rate).max())


def _swaps_s(graph: TaskGraph, times: np.ndarray, transfer: _Transfers) -> float:
    """Time of all swaps of rows, and of the layers during and after them."""
    if not graph.num_layers:
        return 0.0
    layers = times[graph.first_layer : graph.first_ring].reshape(-1, 2, graph.num_trainers)
    during, after = layers.max(axis=2).T
    return float((np.maximum(transfer.swaps_s(len(layers)), during) + after).sum())


def _sync_s(job: Job, graph: TaskGraph, times: np.ndarray, transfer: _Transfers) -> float:
    """Time from the last computed gradient to updated parameters on all trainers."""
    if job.sync is Sync.PS:
        server_s = float(times[graph.first_server : graph.first_layer].max())
        gradients_s, parameters_s = (
            transfer.drain_s(kind) for kind in (EdgeKind.GRADIENT, EdgeKind.PARAMETER)
        )
        return gradients_s + server_s + parameters_s
    if job.trainers == 1:
        return 0.0
    step_s = float(times[graph.first_ring :].max()) + transfer.longest_s(EdgeKind.RING)
    return 2 * (job.trainers - 1) * step_s
