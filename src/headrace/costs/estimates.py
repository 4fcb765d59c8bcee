"""Mean volume per edge, mean time per task and load per NIC of one iteration."""

from __future__ import annotations

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.core.profile import Problem
from headrace.core.tasks import ROLES, EdgeKind, TaskGraph


def edge_volumes(graph: TaskGraph, problem: Problem, seeds: np.ndarray) -> np.ndarray:
    """Mean bytes per iteration and edge, as if all tasks were on different machines.

    `seeds` are seeds per iteration, shape (num_samplers, num_parts).
    """
    _, job, profile = problem
    volumes = np.zeros(graph.num_edges)
    per_store = seeds @ profile.store_traffic.bytes_per_seed_matrix(graph.num_machines)
    volumes[graph.kind == EdgeKind.GRAPH] = per_store.ravel()
    volumes[graph.kind == EdgeKind.BATCH] = seeds.sum(axis=1) * profile.batch_traffic.bytes_per_seed
    if graph.num_servers:
        shard = job.model_bytes / graph.num_servers
        volumes[(graph.kind == EdgeKind.GRADIENT) | (graph.kind == EdgeKind.PARAMETER)] = shard
    volumes[graph.kind == EdgeKind.RING] = ring_chunk_bytes(job)
    return volumes


def ring_chunk_bytes(job: Job) -> float:
    """Bytes a trainer sends per ring step; the model has one chunk per trainer."""
    return job.model_bytes / job.trainers


def task_machines(graph: TaskGraph, placement: Placement) -> np.ndarray:
    """Machine index per task; ring steps run on their trainer's machine (eq. 4)."""
    machines = np.concatenate(
        [
            np.arange(graph.num_machines),
            np.array(placement.samplers, dtype=np.int64),
            np.array(placement.trainers, dtype=np.int64),
            np.array(placement.servers, dtype=np.int64),
            np.array(placement.trainers, dtype=np.int64)[graph.owner[graph.first_ring :]],
        ]
    )
    return machines.astype(np.int32)


def task_times(
    graph: TaskGraph, problem: Problem, machines: np.ndarray, seeds: np.ndarray
) -> np.ndarray:
    """Mean seconds per task and iteration on its machine.

    Sampler and trainer times are proportional to their seeds; store and server times are constant.
    The ring's barrier takes no time.
    """
    cluster, job, profile = problem
    kinds = [machine.kind for machine in cluster.hosts]
    cache = {
        (role, kind): profile.task_time(role, kind).mean
        for role in {ROLES[code] for code in np.unique(graph.role)}
        for kind in set(kinds)
    }
    times = np.array(
        [cache[ROLES[graph.role[j]], kinds[machines[j]]] for j in range(graph.num_tasks)]
    )
    per_sampler = seeds.sum(axis=1)
    sampler_seeds, trainer_seeds = profile.nominal_seeds(job)
    times[graph.first_sampler : graph.first_trainer] *= per_sampler / sampler_seeds
    per_trainer = per_sampler.reshape(graph.num_trainers, -1).sum(axis=1)
    times[graph.first_trainer : graph.first_server] *= per_trainer / trainer_seeds
    if graph.num_tasks > graph.first_ring:
        times[graph.first_ring] = 0.0
    return times


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
