"""The bound of `paced`: (N - 1) * lambda + L, on random instances by the hundred thousand.

Volumes and times fixed, window unlimited, period T at least the largest NIC load per iteration:
every open flow has at least volume / T, so it lasts at most T. The makespan is then at most that of
the same job with p_j for a task and exactly T for every flow with bytes between machines, which is
at most (N - 1) * lambda + L:

- lambda, the longest cycle per iteration: the largest of T (if anything flows), every p_j, and the
  longest way from a trainer through servers or ring back to itself;
- L, the latency: the longest path through one iteration that ends with a task.

A trainer and a server must send each other both gradients and parameters, or neither. The proof is
in docs/explanation/theory.md. Where volumes or times vary, the same holds with the largest time of
every task and with the larger of T and the largest NIC load if every flow had its largest volume.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numba import njit

from headrace.core.tasks import EdgeKind
from headrace.simulator.instance import Instance
from headrace.simulator.outcome import Record
from tests.oracle.theory import TOLERANCE, Shape, crossing_flows, path_length, random_small

SYNC_KINDS = (EdgeKind.GRADIENT, EdgeKind.PARAMETER, EdgeKind.RING)


@dataclass(frozen=True)
class PacedBound:
    """What holds for one instance.

    Attributes:
        period_s: T, the longest a flow can last.
        cycle_s: lambda.
        latency_s: L.
        path_s: Longest path through all iterations, between the makespan and the bound.
        bound_s: (N - 1) * lambda + L.
    """

    period_s: float
    cycle_s: float
    latency_s: float
    path_s: float
    bound_s: float

    @property
    def within_period(self) -> bool:
        """Whether lambda is T, so that no schedule is faster by more than a constant."""
        return 0 < self.cycle_s <= self.period_s * (1 + TOLERANCE)


@njit(cache=True)
def longest_round(
    trainer: int,
    task_weight: np.ndarray,
    edge_weight: np.ndarray,
    edge_dst: np.ndarray,
    edge_lag: np.ndarray,
    out_edges: np.ndarray,
    out_start: np.ndarray,
) -> float:
    """Longest way from the start of a trainer's iteration to the start of its next; 0 if none."""
    arrived = np.full(len(task_weight), -np.inf)
    arrived[trainer] = 0.0
    longest = 0.0
    for j in range(trainer, len(task_weight)):
        for i in range(out_start[j], out_start[j + 1]):
            e = out_edges[i]
            delivered = arrived[j] + task_weight[j] + edge_weight[e]
            if edge_lag[e] == 0:
                arrived[edge_dst[e]] = max(arrived[edge_dst[e]], delivered)
            elif edge_dst[e] == trainer:
                longest = max(longest, delivered)
    return longest


def largest_load_s(instance: Instance, volumes: np.ndarray) -> float:
    """Largest NIC load of one iteration with the given bytes per edge."""
    src = instance.task_machine[instance.edge_src]
    dst = instance.task_machine[instance.edge_dst]
    crossing = (src != dst) & (instance.edge_kind != EdgeKind.ORDER)
    volumes, num = np.where(crossing, volumes, 0.0), instance.num_machines
    out = np.bincount(src, weights=volumes, minlength=num) / instance.nic_out_bytes_per_s
    into = np.bincount(dst, weights=volumes, minlength=num) / instance.nic_in_bytes_per_s
    return float(max(out.max(), into.max()))


def paced_bound(instance: Instance, shape: Shape) -> PacedBound:
    """The bound, from mean times and volumes."""
    flows, graph, times = crossing_flows(instance), shape.graph, instance.task_time_s
    flow_weight = np.where(flows, instance.pace_s, 0.0)
    rounds = [
        longest_round(
            trainer,
            times,
            flow_weight,
            instance.edge_dst,
            instance.edge_lag,
            shape.out_edges,
            shape.out_start,
        )
        for trainer in range(graph.first_trainer, graph.first_server)
    ]
    cycle_s = float(max(flow_weight.max(), times.max(), *rounds))
    latency_s = path_length(replace(instance, num_iterations=1), shape, times, flow_weight)
    return PacedBound(
        period_s=instance.pace_s,
        cycle_s=cycle_s,
        latency_s=latency_s,
        path_s=path_length(instance, shape, times, flow_weight),
        bound_s=(instance.num_iterations - 1) * cycle_s + latency_s,
    )


def at_peak(instance: Instance, record: Record) -> Instance:
    """The instance with the largest time of every task and the largest volume of every flow seen.

    Its period is the instance's, or the largest NIC load of those volumes if that is larger.
    """
    volumes = record.flow_bytes.max(axis=1)
    times = (record.task_end_s - record.task_start_s).max(axis=1)
    pace_s = max(instance.pace_s, largest_load_s(instance, volumes))
    return replace(instance, edge_bytes=volumes, task_time_s=times, pace_s=pace_s)


def random_paced(rng: np.random.Generator) -> tuple[Instance, Shape]:
    """A small instance with a period; in half of them no parameters cross the network."""
    instance, shape = random_small(rng)
    volumes, times = instance.edge_bytes, instance.task_time_s
    if rng.random() < 0.5:
        volumes = np.where(np.isin(instance.edge_kind, SYNC_KINDS), 0.0, volumes)
        times = times * rng.choice([0.1, 1.0])
    pace_s = largest_load_s(instance, volumes) * rng.choice([1.0, rng.uniform(1, 2)])
    num_iterations = int(rng.integers(1, 13))
    return replace(
        instance,
        edge_bytes=volumes,
        task_time_s=times,
        pace_s=float(pace_s),
        num_iterations=num_iterations,
    ), shape


def random_varied(rng: np.random.Generator) -> tuple[Instance, Shape]:
    """Like `random_paced`, with times and graph volumes that vary between iterations."""
    instance, shape = random_paced(rng)
    factors = rng.uniform(0, rng.uniform(1, 4), size=(2, 8))
    factors /= factors.mean(axis=1, keepdims=True)
    data = np.isin(instance.edge_kind, (EdgeKind.GRAPH, EdgeKind.BATCH))
    return replace(
        instance,
        seed=int(rng.integers(2**31)),
        edge_table=np.where(data, rng.integers(0, 3, size=len(data)), 0).astype(np.int32),
        task_table=rng.integers(0, 3, size=instance.num_tasks).astype(np.int32),
        tables=np.concatenate([np.ones(1), *factors]),
        table_start=np.array([0, 1, 9, 17], dtype=np.int64),
    ), shape


@dataclass
class PacedCampaign:
    """What many instances showed.

    Attributes:
        paced_instances: Instances tried.
        paced_violations: Makespans above the longest path, or longest paths above the bound.
        paced_within_T_instances: Instances whose lambda is T.
        worst_paced_ratio: Largest makespan over the bound.
    """

    paced_instances: int = 0
    paced_violations: int = 0
    paced_within_T_instances: int = 0  # noqa: N815 - as in docs/explanation/theory.md
    worst_paced_ratio: float = 0.0

    def add(self, makespan_s: float, found: PacedBound) -> None:
        """Compare one makespan with its bound."""
        slack = 1 + TOLERANCE
        broken = makespan_s > found.path_s * slack or found.path_s > found.bound_s * slack
        self.paced_instances += 1
        self.paced_violations += broken
        self.paced_within_T_instances += found.within_period
        if found.bound_s > 0:
            self.worst_paced_ratio = max(self.worst_paced_ratio, makespan_s / found.bound_s)


def run_paced_campaign(
    num_instances: int, seed: int, paced_makespan_s: Callable[[Instance], float]
) -> PacedCampaign:
    """Try the bound on random instances."""
    rng = np.random.default_rng(seed)
    campaign = PacedCampaign()
    for _ in range(num_instances):
        instance, shape = random_paced(rng)
        campaign.add(paced_makespan_s(instance), paced_bound(instance, shape))
    return campaign
