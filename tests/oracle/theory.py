"""The paper's bounds on T_OES, and small random instances to try them on by the hundred thousand.

With an unlimited window and fixed volumes:

- Theorem 3: T_OES is at most the longest path through the execution DAG of N iterations, where a
  task weighs its time and a flow weighs d / min(B_out[m(j)] / deg_out[m(j)], B_in[m(j')] /
  deg_in[m(j')]) (eq. 26 with the degrees of the right machines). Edges of the DAG: a task waits for
  its inputs and for its previous iteration (eqs 8-11), a flow for its task and for the previous
  flow of its pair (eq. 12).
- Delta bound (proof of Theorem 1): T_OES is at most Delta times the full-rate chain: the longest
  path of the same DAG with d / min(B_out, B_in) for a flow, Delta being the largest degree of any
  port, at least 1.

Degrees are one-iteration degrees: flows of one iteration that can be in transit together (an
antichain). Between any two other tasks there is at most one flow in transit, so all pairs count. A
ring is different: chunk k of a trainer is through before the trainer can send chunk k + W, because
the steps between them go once around the ring; so of the 2(W-1) chunks a trainer sends at most W
are in transit together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numba import njit

from headrace.core.job import Job, Sync
from headrace.core.tasks import EdgeKind, TaskGraph, build_task_graph
from headrace.simulator.instance import Instance

TOLERANCE = 1e-9
"""Relative slack for rounding; a ratio above 1 + this is a violation."""


@dataclass(frozen=True)
class Shape:
    """A task graph with its edges by producer."""

    graph: TaskGraph
    out_edges: np.ndarray
    out_start: np.ndarray


@dataclass(frozen=True)
class Bounds:
    """What the theory says about one instance.

    Attributes:
        critical_path_s: Longest path with the weights of eq. 26.
        full_rate_chain_s: Longest path with every flow alone on the network.
        delta: Largest degree of a port (eq. 23), at least 1.
    """

    critical_path_s: float
    full_rate_chain_s: float
    delta: int


@njit(cache=True)
def longest_path(
    num_iterations: int,
    task_weight: np.ndarray,
    edge_weight: np.ndarray,
    is_flow: np.ndarray,
    edge_dst: np.ndarray,
    edge_lag: np.ndarray,
    out_edges: np.ndarray,
    out_start: np.ndarray,
) -> float:
    """Longest path through all iterations that ends with a task.

    Tasks must be numbered so that edges without lag lead upwards.
    """
    num_tasks = len(task_weight)
    finished = np.zeros(num_tasks)
    delivered = np.zeros(len(edge_weight))
    arrived = np.zeros(num_tasks)
    for _ in range(num_iterations):
        arrives_next = np.zeros(num_tasks)
        for j in range(num_tasks):
            finished[j] = max(finished[j], arrived[j]) + task_weight[j]
            for i in range(out_start[j], out_start[j + 1]):
                e = out_edges[i]
                if is_flow[e]:
                    delivered[e] = max(finished[j], delivered[e]) + edge_weight[e]
                else:
                    delivered[e] = finished[j]
                if edge_lag[e] == 0:
                    arrived[edge_dst[e]] = max(arrived[edge_dst[e]], delivered[e])
                else:
                    arrives_next[edge_dst[e]] = max(arrives_next[edge_dst[e]], delivered[e])
        arrived = arrives_next
    return float(finished.max())


def shape_of(graph: TaskGraph) -> Shape:
    """Sort the edges by producer."""
    assert (graph.src < graph.dst)[graph.lag == 0].all()
    starts = np.searchsorted(np.sort(graph.src), np.arange(graph.num_tasks + 1))
    return Shape(graph, np.argsort(graph.src, kind="stable"), starts)


@cache
def small_shape(num_machines: int, trainers: int, samplers: int, servers: int) -> Shape:
    """Shape of a small job; a ring if it has no servers."""
    job = Job(
        trainers=trainers,
        samplers_per_trainer=samplers,
        sync=Sync.PS if servers else Sync.RING,
        parameter_servers=max(servers, 1),
        batch_size=samplers,
    )
    return shape_of(build_task_graph(job, num_machines))


def crossing_flows(instance: Instance) -> np.ndarray:
    """Edges that move bytes between machines."""
    machines = instance.task_machine
    remote = machines[instance.edge_src] != machines[instance.edge_dst]
    return np.asarray(remote & (instance.edge_kind != EdgeKind.ORDER) & (instance.edge_bytes > 0))


def ring_width(num_trainers: int) -> int:
    """Chunks of one trainer that can be in transit together."""
    return min(num_trainers, 2 * (num_trainers - 1))


def bounds(instance: Instance, shape: Shape, width: int | None = None) -> Bounds:
    """Both bounds; times and volumes are the means.

    Args:
        instance: Without variation.
        shape: Of its task graph.
        width: Chunks of one trainer that count as in transit together; `ring_width` by default.
    """
    flows = crossing_flows(instance)
    machines, num_machines = instance.task_machine, instance.num_machines
    src, dst = machines[instance.edge_src], machines[instance.edge_dst]
    ring = instance.edge_kind == EdgeKind.RING
    trainers = shape.graph.num_trainers
    num_chunks = max(1, 2 * (trainers - 1))
    width = ring_width(trainers) if width is None else width

    def degree(machine: np.ndarray) -> np.ndarray:
        pairs = np.bincount(machine[flows & ~ring], minlength=num_machines)
        chunks = np.bincount(machine[flows & ring], minlength=num_machines)
        return pairs + chunks // num_chunks * width

    deg_out, deg_in = degree(src), degree(dst)
    nic_out, nic_in = instance.nic_out_bytes_per_s, instance.nic_in_bytes_per_s
    full_rate = np.minimum(nic_out[src], nic_in[dst])
    shared_rate = np.minimum(
        nic_out[src] / np.maximum(deg_out[src], 1), nic_in[dst] / np.maximum(deg_in[dst], 1)
    )
    return Bounds(
        critical_path_s=path_length(
            instance, shape, instance.task_time_s, instance.edge_bytes / shared_rate
        ),
        full_rate_chain_s=path_length(
            instance, shape, instance.task_time_s, instance.edge_bytes / full_rate
        ),
        delta=int(max(1, deg_out.max(), deg_in.max())),
    )


def path_length(
    instance: Instance, shape: Shape, task_weight: np.ndarray, edge_weight: np.ndarray
) -> float:
    """Longest path of the execution DAG with the given weights."""
    return longest_path(
        instance.num_iterations,
        task_weight,
        edge_weight,
        crossing_flows(instance),
        instance.edge_dst,
        instance.edge_lag,
        shape.out_edges,
        shape.out_start,
    )


def num_chain_elements(instance: Instance, shape: Shape) -> int:
    """Most tasks with time and flows with bytes that one path of the DAG can hold."""
    return int(
        path_length(
            instance,
            shape,
            (instance.task_time_s > 0).astype(np.float64),
            (instance.edge_bytes > 0).astype(np.float64),
        )
    )


def random_small(rng: np.random.Generator) -> tuple[Instance, Shape]:
    """A small instance with unlimited window and fixed volumes, built without any checks."""
    num_machines = int(rng.integers(2, 6))
    trainers, samplers, servers = (int(x) for x in rng.integers((1, 1, 0), (5, 4, 3)))
    shape = small_shape(num_machines, trainers, samplers, servers)
    graph = shape.graph
    hosts = int(rng.integers(1, num_machines + 1))
    placed = rng.integers(0, hosts, size=trainers * samplers + trainers + servers)
    # Trainers in the order of their machines keep the ring in the order every launcher ranks them.
    of_trainer = np.sort(placed[trainers * samplers :][:trainers])
    machines = np.concatenate(
        [
            np.arange(num_machines),
            placed[: trainers * samplers],
            of_trainer,
            placed[trainers * (samplers + 1) :],
            of_trainer[graph.owner[graph.first_ring :]],
        ]
    ).astype(np.int32)
    # Wide spreads make every resource the bottleneck in some instance; equal figures make ties.
    spread_s, spread_bytes, spread_nic = rng.choice([0.0, 1.0, 3.0], size=3)
    times = np.exp(rng.uniform(-spread_s, spread_s, size=graph.num_tasks))
    times *= rng.choice([0.0, 0.1, 1.0])
    times[rng.random(graph.num_tasks) < 0.2] = 0.0
    volumes = np.exp(rng.uniform(-spread_bytes, spread_bytes, size=graph.num_edges))
    # Eq. 12 and the ring have one chunk size per job; other volumes differ by kind and by edge.
    volumes *= np.exp(rng.uniform(-3, 3, size=len(EdgeKind)))[graph.kind]
    ring = graph.kind == EdgeKind.RING
    volumes[ring] = volumes[ring][:1].sum() if ring.any() else 0.0
    volumes[graph.kind == EdgeKind.ORDER] = 0.0
    nics = np.exp(rng.uniform(-spread_nic, spread_nic, size=(2, num_machines)))
    instance = Instance(
        num_machines=num_machines,
        num_iterations=int(rng.integers(1, 7)),
        window=0,
        seed=0,
        task_machine=machines,
        task_time_s=times,
        task_table=np.zeros(graph.num_tasks, dtype=np.int32),
        edge_src=graph.src,
        edge_dst=graph.dst,
        edge_lag=graph.lag,
        edge_kind=graph.kind,
        edge_bytes=volumes,
        edge_table=np.zeros(graph.num_edges, dtype=np.int32),
        tables=np.ones(1),
        table_start=np.array([0, 1], dtype=np.int64),
        nic_out_bytes_per_s=nics[0],
        nic_in_bytes_per_s=nics[1],
        pace_s=1.0,
    )
    return instance, shape


@dataclass
class Campaign:
    """What many instances showed; ratios are T_OES over the bound.

    Attributes:
        instances: Instances tried.
        theorem3_violations: T_OES above the critical path.
        delta_violations: T_OES above Delta times the full-rate chain.
        worst_theorem3_ratio: Largest ratio to the critical path.
        worst_delta_ratio: Largest ratio to Delta times the full-rate chain.
        single_chunk_violations: T_OES above the critical path if of every trainer in a ring only
            one chunk were counted: why the width of the ring matters.
        worst_single_chunk_ratio: The largest such ratio.
    """

    instances: int = 0
    theorem3_violations: int = 0
    delta_violations: int = 0
    worst_theorem3_ratio: float = 0.0
    worst_delta_ratio: float = 0.0
    single_chunk_violations: int = 0
    worst_single_chunk_ratio: float = 0.0

    def add(self, makespan_s: float, found: Bounds, single_chunk: Bounds) -> None:
        """Compare one T_OES with its bounds."""

        def ratio(bound_s: float) -> float:
            return makespan_s / bound_s if bound_s > 0 else float(makespan_s > 0)

        path = ratio(found.critical_path_s)
        chain = ratio(found.delta * found.full_rate_chain_s)
        single = ratio(single_chunk.critical_path_s)
        self.instances += 1
        self.theorem3_violations += path > 1 + TOLERANCE
        self.delta_violations += chain > 1 + TOLERANCE
        self.single_chunk_violations += single > 1 + TOLERANCE
        self.worst_theorem3_ratio = max(self.worst_theorem3_ratio, path)
        self.worst_delta_ratio = max(self.worst_delta_ratio, chain)
        self.worst_single_chunk_ratio = max(self.worst_single_chunk_ratio, single)


def run_campaign(
    num_instances: int, seed: int, oes_makespan_s: Callable[[Instance], float]
) -> Campaign:
    """Try the bounds on random instances."""
    rng = np.random.default_rng(seed)
    campaign = Campaign()
    for _ in range(num_instances):
        instance, shape = random_small(rng)
        makespan_s = oes_makespan_s(instance)
        found = bounds(instance, shape)
        is_ring = shape.graph.num_servers == 0 and shape.graph.num_trainers > 1
        campaign.add(makespan_s, found, bounds(instance, shape, width=1) if is_ring else found)
    return campaign
