"""Mean volume per edge, mean time per task and load per NIC of one iteration."""

from __future__ import annotations

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.job import Job, Role
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.core.tasks import ROLES, EdgeKind, TaskGraph


def edge_volumes(graph: TaskGraph, problem: Problem, seeds: np.ndarray) -> np.ndarray:
    """Mean bytes per iteration and edge, as if all tasks were on different machines.

    `seeds` are seeds per iteration, shape (num_samplers, num_parts).
    """
    _, job, profile = problem
    volumes = np.zeros(graph.num_edges)
    matrix = profile.store_traffic.bytes_per_seed_matrix(graph.num_machines)
    volumes[graph.kind == EdgeKind.GRAPH] = (store_seeds(problem, seeds) @ matrix).ravel()
    volumes[graph.kind == EdgeKind.BATCH] = profile.batch_bytes(job, seeds.sum(axis=1))
    if graph.num_servers:
        shard = job.model_bytes / graph.num_servers
        volumes[(graph.kind == EdgeKind.GRADIENT) | (graph.kind == EdgeKind.PARAMETER)] = shard
    volumes[graph.kind == EdgeKind.RING] = ring_chunk_bytes(job)
    if graph.num_layers:
        volumes[graph.kind == EdgeKind.SWAP] = swap_volumes(problem).ravel()
    return volumes


def swap_volumes(problem: Problem) -> np.ndarray:
    """Bytes by swap of a full-graph job, and by pair of trainers: by sender, then receiver."""
    figures, apart = problem.full_graph, ~np.eye(problem.job.trainers, dtype=bool)
    volumes = [figures.volumes(swap)[apart] for swap in problem.job.swaps]
    return np.array(volumes).reshape(len(volumes), -1)


def store_seeds(problem: Problem, seeds: np.ndarray) -> np.ndarray:
    """Seeds for which store volumes are proportional, shape (num_samplers, num_parts)."""
    _, job, profile = problem
    if profile.growth is None:
        return seeds
    own = seeds.sum(axis=1)
    ratio = profile.equivalent_seeds("store_bytes", own, job) / np.where(own > 0, own, 1.0)
    equivalent: np.ndarray = seeds * ratio[:, None]
    return equivalent


def ring_chunk_bytes(job: Job) -> float:
    """Bytes a trainer sends per ring step; the model has one chunk per trainer."""
    return job.model_bytes / job.trainers


def task_machines(graph: TaskGraph, placement: Placement) -> np.ndarray:
    """Machine index per task; layers and ring steps run on their trainer's machine (eq. 4)."""
    machines = np.concatenate(
        [
            np.arange(graph.num_machines),
            np.array(placement.samplers, dtype=np.int64),
            np.array(placement.trainers, dtype=np.int64),
            np.array(placement.servers, dtype=np.int64),
            np.array(placement.trainers, dtype=np.int64)[graph.owner[graph.first_layer :]],
        ]
    )
    return machines.astype(np.int32)


def task_times(
    graph: TaskGraph, problem: Problem, machines: np.ndarray, seeds: np.ndarray
) -> np.ndarray:
    """Mean seconds per task and iteration on its machine; see `time_factors`."""
    cluster, _, profile = problem
    kinds = [machine.kind for machine in cluster.hosts]
    cache = {
        (role, kind): profile.task_time(role, kind).mean
        for role in {ROLES[code] for code in np.unique(graph.role)}
        for kind in set(kinds)
    }
    times: np.ndarray = np.array(
        [cache[ROLES[graph.role[j]], kinds[machines[j]]] for j in range(graph.num_tasks)]
    )
    times *= time_factors(graph, problem, seeds)
    times += swap_delays(graph, problem)
    return times


def swap_delays(graph: TaskGraph, problem: Problem) -> np.ndarray:
    """Part of each task's time that a swap takes beyond its transfer, which does not vary."""
    delays = np.zeros(graph.num_tasks)
    if graph.num_layers:
        # What others have sent is used after the swap.
        after = delays[graph.first_layer : graph.first_ring].reshape(-1, 2, graph.num_trainers)
        after[:, 1] = problem.full_graph.delays_s(len(problem.job.swaps))[:, None]
    return delays


def time_factors(graph: TaskGraph, problem: Problem, seeds: np.ndarray) -> np.ndarray:
    """Factor of each task's time for its seeds.

    Times of samplers, trainers and stores follow the profile's growth curves. Server times are
    constant, and the ring's barrier takes no time. Trainers and layers of a full-graph job have
    their shares of an epoch's time, in proportion to the nodes and edges of their part.
    """
    _, job, profile = problem
    factors = np.ones(graph.num_tasks)
    own = seeds.sum(axis=1)
    factors[: graph.first_sampler] = profile.time_factors(Role.STORE, job, own)
    factors[graph.first_sampler : graph.first_trainer] = profile.time_factors(
        Role.SAMPLER, job, own
    )
    factors[graph.first_trainer : graph.first_server] = profile.time_factors(Role.TRAINER, job, own)
    if graph.num_layers:
        figures = problem.full_graph
        shares = np.outer(figures.time_shares(len(job.swaps)), figures.work_factors())
        factors[graph.first_trainer : graph.first_server] = shares[0]
        factors[graph.first_layer : graph.first_ring] = shares[1:].ravel()
    if graph.num_tasks > graph.first_ring:
        factors[graph.first_ring] = 0.0
    return factors


def nic_loads(
    graph: TaskGraph, volumes: np.ndarray, machines: np.ndarray, cluster: Cluster
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds per iteration that each NIC receives and sends at full rate, per machine."""
    src, dst = machines[graph.src], machines[graph.dst]
    remote = src != dst
    num = cluster.num_machines
    received = np.bincount(dst[remote], weights=volumes[remote], minlength=num)
    sent = np.bincount(src[remote], weights=volumes[remote], minlength=num)
    return received / cluster.nic_in_bytes_per_s(), sent / cluster.nic_out_bytes_per_s()


def nic_load_s(
    graph: TaskGraph, volumes: np.ndarray, machines: np.ndarray, cluster: Cluster
) -> float:
    """Largest NIC load, a lower bound of the time per iteration."""
    load_in, load_out = nic_loads(graph, volumes, machines, cluster)
    return float(max(load_in.max(), load_out.max()))
