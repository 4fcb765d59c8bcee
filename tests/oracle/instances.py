"""Seeded random instances, small enough for the naive simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role, Sync
from headrace.core.placement import Placement
from headrace.core.profile import BatchTraffic, Problem, Profile, StoreTraffic, TaskTime, Variation
from headrace.core.tasks import EdgeKind, TaskGraph, build_task_graph
from headrace.costs import nic_load_s
from headrace.simulator.instance import Instance, build_instance

WINDOWS = (1, 2, 4, 0)


@dataclass(frozen=True)
class Case:
    """A random instance with everything it was built from."""

    instance: Instance
    graph: TaskGraph
    problem: Problem
    placement: Placement


def random_case(
    seed: int,
    *,
    generic: bool = True,
    varied: bool | None = None,
    window: int | None = None,
    sync: Sync | None = None,
) -> Case:
    """Draw a placed job.

    Args:
        seed: Same seed, same case.
        generic: Give every edge and task a figure of its own, so that no two flows end together by
            symmetry; otherwise equal shards and equal seed mixes stay equal.
        varied: Whether volumes vary from iteration to iteration; drawn if not given.
        window: Run-ahead window; drawn if not given.
        sync: Parameter servers or ring; drawn if not given.
    """
    rng = np.random.default_rng([seed, 0x4EAD])
    num_machines = int(rng.choice([2, 3, 4, 5], p=[0.35, 0.35, 0.2, 0.1]))
    trainers = int(rng.choice([1, 2, 3, 4], p=[0.25, 0.4, 0.2, 0.15]))
    if varied is None:
        varied = bool(rng.random() < 0.5)
    job = Job(
        trainers=trainers,
        samplers_per_trainer=int(rng.choice([1, 2, 3], p=[0.5, 0.35, 0.15])),
        sync=sync or Sync(rng.choice(["ps", "ring"])),
        parameter_servers=int(rng.integers(1, 3)),
        batch_size=int(rng.integers(3, 40)),
        model_bytes=_log_uniform(rng, 1.0, 3e3),
        iterations=int(rng.choice([2, 3, 4, 5, 6], p=[0.25, 0.25, 0.2, 0.15, 0.15])),
        window=int(rng.choice(WINDOWS)) if window is None else window,
    )
    cluster = Cluster(
        machines=tuple(
            Machine(
                name=f"m{m}",
                kind=str(rng.choice(["slow", "fast"])),
                nic_in=_log_uniform(rng, 50, 500),
                nic_out=_log_uniform(rng, 50, 500),
            )
            for m in range(num_machines)
        )
    )
    placement = Placement(
        samplers=_places(rng, job.num_samplers, num_machines),
        trainers=_places(rng, job.trainers, num_machines),
        servers=_places(rng, job.num_servers, num_machines),
    )
    problem = Problem(cluster, job, _random_profile(rng, num_machines, varied))
    instance, graph = build_instance(
        problem,
        placement,
        seeds=_random_seeds(rng, job, num_machines),
        seed=int(rng.integers(2**31)),
    )
    if generic:
        instance = _make_generic(rng, instance, graph, cluster)
    return Case(instance, graph, problem, placement)


def symmetric_instance(seed: int) -> Instance:
    """An instance of small integers without variation: many events are exactly simultaneous."""
    instance = constant_case(seed, generic=False).instance
    rng = np.random.default_rng([seed, 0x7135])
    nics = rng.choice([60, 120, 240], size=2)
    slow = rng.integers(instance.num_machines)
    nic_out = np.full(instance.num_machines, float(nics[0]))
    nic_out[slow] = nics[1]
    times = rng.choice([0, 1, 2, 4], size=4) / 8
    _, kind = np.unique(instance.task_time_s, return_inverse=True)
    sizes = np.unique(instance.edge_bytes)
    volumes = rng.choice([12, 24, 60, 120], size=len(sizes)).astype(float)
    volumes[sizes == 0] = 0.0
    return replace(
        instance,
        window=int(rng.choice(WINDOWS)),
        edge_bytes=volumes[np.searchsorted(sizes, instance.edge_bytes)],
        task_time_s=times[kind % len(times)],
        nic_out_bytes_per_s=nic_out,
        nic_in_bytes_per_s=nic_out.copy(),
    )


def random_instance(seed: int) -> Instance:
    """The instance of `random_case`."""
    return random_case(seed).instance


def constant_case(seed: int, *, generic: bool = True) -> Case:
    """A case as the paper's theory has it: unlimited window, no variation."""
    case = random_case(seed, generic=generic, varied=False, window=0)
    instance = case.instance
    # Table 0 is the single factor 1.
    instance = replace(
        instance,
        task_table=np.zeros_like(instance.task_table),
        edge_table=np.zeros_like(instance.edge_table),
    )
    return replace(case, instance=instance)


def fixed_instance(
    *,
    machines: Sequence[int],
    times: Sequence[float],
    edges: Sequence[tuple[int, int, int, EdgeKind, float]],
    nic_out: Sequence[float],
    nic_in: Sequence[float],
    num_iterations: int = 1,
    window: int = 0,
    pace_s: float = 1.0,
) -> Instance:
    """An instance written out by hand, without variation.

    Args:
        machines: Machine per task.
        times: Seconds per task.
        edges: (producer, consumer, lag, kind, bytes).
        nic_out: Outgoing bandwidth per machine.
        nic_in: Incoming bandwidth per machine.
        num_iterations: Iterations.
        window: Run-ahead window; 0 is unlimited.
        pace_s: Period of `paced`.
    """
    return Instance(
        num_machines=len(nic_out),
        num_iterations=num_iterations,
        window=window,
        seed=0,
        task_machine=np.array(machines, dtype=np.int32),
        task_time_s=np.array(times, dtype=np.float64),
        task_table=np.zeros(len(machines), dtype=np.int32),
        edge_src=np.array([edge[0] for edge in edges], dtype=np.int32),
        edge_dst=np.array([edge[1] for edge in edges], dtype=np.int32),
        edge_lag=np.array([edge[2] for edge in edges], dtype=np.int8),
        edge_kind=np.array([edge[3] for edge in edges], dtype=np.int8),
        edge_bytes=np.array([edge[4] for edge in edges], dtype=np.float64),
        edge_table=np.zeros(len(edges), dtype=np.int32),
        tables=np.ones(1),
        table_start=np.array([0, 1], dtype=np.int64),
        nic_out_bytes_per_s=np.array(nic_out, dtype=np.float64),
        nic_in_bytes_per_s=np.array(nic_in, dtype=np.float64),
        pace_s=pace_s,
    )


def ring_instance(
    trainer_machines: list[int],
    trainer_times: list[float],
    nic_out: list[float],
    chunk_bytes: float,
    num_iterations: int,
) -> Instance:
    """A ring without stores and samplers in the way: their times and volumes are 0."""
    num_machines, num_trainers = len(nic_out), len(trainer_machines)
    graph = build_task_graph(Job(trainers=num_trainers, sync=Sync.RING, batch_size=1), num_machines)
    of_ring = [trainer_machines[w] for w in graph.owner[graph.first_ring :]]
    times = np.zeros(graph.num_tasks)
    times[graph.first_trainer : graph.first_server] = trainer_times
    volume = {EdgeKind.RING: chunk_bytes}
    return fixed_instance(
        machines=[*range(num_machines), *trainer_machines, *trainer_machines, *of_ring],
        times=list(times),
        edges=[
            (int(src), int(dst), int(lag), EdgeKind(kind), volume.get(EdgeKind(kind), 0.0))
            for src, dst, lag, kind in zip(graph.src, graph.dst, graph.lag, graph.kind, strict=True)
        ],
        nic_out=nic_out,
        nic_in=[99.0] * num_machines,
        num_iterations=num_iterations,
    )


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _places(rng: np.random.Generator, num_tasks: int, num_machines: int) -> tuple[int, ...]:
    return tuple(int(m) for m in rng.integers(0, num_machines, size=num_tasks))


def _random_variation(rng: np.random.Generator) -> Variation:
    shape = rng.integers(4)
    if shape == 0:
        return Variation(peak_to_mean=float(rng.uniform(1.1, 2)))
    if shape == 1:
        return Variation(peak_to_mean=float(rng.uniform(2, 4)))
    quantiles = rng.uniform(0.1, 3, size=int(rng.integers(2, 9)))
    if shape == 2:
        quantiles[0] = 0.0
    return Variation(quantiles=tuple(float(q) for q in quantiles))


def _random_profile(rng: np.random.Generator, num_machines: int, varied: bool) -> Profile:
    constant = Variation()

    def task_time(scale_s: float) -> TaskTime:
        if rng.random() < 0.2:
            return TaskTime(mean=0.0)
        variation = _random_variation(rng) if rng.random() < 0.3 else constant
        return TaskTime(mean=_log_uniform(rng, scale_s / 10, scale_s), variation=variation)

    times = {
        role: {"slow": task_time(scale_s), "fast": task_time(scale_s / 2)}
        for role, scale_s in (
            (Role.STORE, 1.0),
            (Role.SAMPLER, 2.0),
            (Role.TRAINER, 4.0),
            (Role.SERVER, 1.0),
            (Role.RING, 0.3),
        )
    }
    volume = _random_variation(rng) if varied else constant
    bytes_per_seed = _log_uniform(rng, 3, 100)
    if rng.random() < 0.3:
        matrix = rng.uniform(
            0, 2 * bytes_per_seed / num_machines, size=(num_machines, num_machines)
        )
        rows = tuple(tuple(float(x) for x in row) for row in matrix)
        store_traffic = StoreTraffic(matrix=rows, variation=volume)
    else:
        locality = float(rng.choice([0.0, 1.0, rng.uniform(0, 1)], p=[0.3, 0.1, 0.6]))
        store_traffic = StoreTraffic(
            bytes_per_seed=bytes_per_seed, locality=locality, variation=volume
        )
    batch = BatchTraffic(
        bytes_per_seed=0.0 if rng.random() < 0.1 else _log_uniform(rng, 1, 50),
        variation=_random_variation(rng) if varied and rng.random() < 0.5 else constant,
    )
    return Profile(task_times=times, store_traffic=store_traffic, batch_traffic=batch)


def _random_seeds(rng: np.random.Generator, job: Job, num_parts: int) -> np.ndarray | None:
    """Uniform half of the time, else a random mix with the same number of seeds per sampler."""
    if rng.random() < 0.5:
        return None
    mix = rng.dirichlet(np.ones(num_parts), size=job.num_samplers)
    return mix * (job.batch_size / job.samplers_per_trainer)


def _make_generic(
    rng: np.random.Generator, instance: Instance, graph: TaskGraph, cluster: Cluster
) -> Instance:
    volumes = instance.edge_bytes * rng.uniform(0.5, 1.5, size=instance.num_edges)
    return replace(
        instance,
        edge_bytes=volumes,
        task_time_s=instance.task_time_s * rng.uniform(0.5, 1.5, size=instance.num_tasks),
        pace_s=nic_load_s(graph, volumes, instance.task_machine, cluster),
    )
