"""Seconds per iteration that each NIC is busy, as sums over the tasks of a machine.

Graph and sync traffic depend only on task counts per machine. Batch traffic also depends on which
samplers share a machine with their trainer. Moving a task therefore updates loads in constant time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.job import Job, Role, Sync
from headrace.core.placement import Placement, demand_vector, resource_names
from headrace.core.profile import Problem
from headrace.costs import ring_chunk_bytes
from headrace.policies.compiled import hot


class LoadModel(NamedTuple):
    """Loads and capacities as flat arrays; loads are seconds per iteration.

    Attributes:
        num_machines: M.
        num_trainers: W.
        per_trainer: Samplers per trainer.
        num_servers: P.
        graph_in: Incoming graph data by machine and sampler count, shape (M, num_samplers + 1).
        graph_out: Outgoing graph data, same shape.
        batch_in: One sub-batch from another machine.
        batch_out: One sub-batch to another machine.
        sync_in: One incoming shard of gradients or parameters.
        sync_out: One outgoing shard.
        ring_in: A complete ring all-reduce, if the ring enters the machine.
        ring_out: The same, outgoing.
        capacity: Resources without the store's demand, shape (M, R).
        demand: Resources of one sampler, trainer, server, shape (3, R).
    """

    num_machines: int
    num_trainers: int
    per_trainer: int
    num_servers: int
    graph_in: Any
    graph_out: Any
    batch_in: Any
    batch_out: Any
    sync_in: Any
    sync_out: Any
    ring_in: Any
    ring_out: Any
    capacity: Any
    demand: Any


def build_load_model(problem: Problem, *, local_seeds: bool) -> LoadModel:
    """Tabulate the loads of a job.

    With `local_seeds`, samplers use seeds of their own machine first. With a measured traffic
    matrix, the remaining seeds are assumed to be uniform over the other partitions.
    """
    cluster, job, profile = problem
    num = cluster.num_machines
    nic_in, nic_out = cluster.nic_in_bytes_per_s(), cluster.nic_out_bytes_per_s()
    matrix = profile.store_bytes_per_seed(job, num)
    wanted = job.batch_size / job.samplers_per_trainer
    counts = np.arange(_most_samplers(cluster, job) + 1)
    demand = wanted * counts[None, :]
    weights = profile.part_weights(num)
    supply: Any = wanted * job.num_samplers / num
    if weights is not None:
        supply = wanted * job.num_samplers * weights[:, None]
    own = np.minimum(supply, demand) if local_seeds else np.zeros_like(demand)
    foreign = demand - own
    # Bytes per remote seed: from all stores, and from the store on the sampler's machine.
    total, beside = matrix.sum(), matrix.diagonal()
    if weights is not None:
        others_all, others_beside = _of_others(matrix, weights, local_seeds)
    elif local_seeds and num > 1:
        others_all = (total - matrix.sum(axis=1)) / (num - 1)
        others_beside = (matrix.sum(axis=0) - beside) / (num - 1)
    else:
        others_all, others_beside = np.full(num, total / num), matrix.mean(axis=0)
    served_beside = own * beside[:, None] + foreign * others_beside[:, None]
    received = own * matrix.sum(axis=1)[:, None] + foreign * others_all[:, None] - served_beside
    sent = supply * matrix.sum(axis=0)[:, None] - served_beside
    if weights is not None:
        sent = wanted * job.num_samplers * (weights @ matrix)[:, None] - served_beside
    batch = float(profile.batch_bytes(job, np.array(wanted)))
    shard = job.model_bytes / job.num_servers if job.num_servers else 0.0
    is_ring = job.sync is Sync.RING
    ring = 2 * (job.trainers - 1) * ring_chunk_bytes(job) if is_ring else 0.0
    names = resource_names(cluster, job)
    roles = (Role.SAMPLER, Role.TRAINER, Role.SERVER)
    return LoadModel(
        num_machines=num,
        num_trainers=job.trainers,
        per_trainer=job.samplers_per_trainer,
        num_servers=job.num_servers,
        graph_in=np.ascontiguousarray(received / nic_in[:, None]),
        graph_out=np.ascontiguousarray(sent / nic_out[:, None]),
        batch_in=batch / nic_in,
        batch_out=batch / nic_out,
        sync_in=shard / nic_in,
        sync_out=shard / nic_out,
        ring_in=ring / nic_in,
        ring_out=ring / nic_out,
        capacity=cluster.capacities(names) - demand_vector(job, Role.STORE, names),
        demand=np.array([demand_vector(job, role, names) for role in roles]),
    )


def _of_others(
    matrix: np.ndarray, weights: np.ndarray, local_seeds: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes per seed that is not local: from all stores, and from the store of the machine.

    Such seeds come from the other partitions, or from all with uniform seeds, in proportion to
    their weights.
    """
    weighted = weights[:, None] * matrix
    rows, columns = weighted.sum(axis=1), weighted.sum(axis=0)
    if not local_seeds or len(weights) == 1:
        return np.full(len(weights), rows.sum()), columns
    rest = np.maximum(1 - weights, 1e-12)
    return (rows.sum() - rows) / rest, (columns - weighted.diagonal()) / rest


def _most_samplers(cluster: Cluster, job: Job) -> int:
    """Largest number of samplers that any machine can host."""
    names = resource_names(cluster, job)
    demand = demand_vector(job, Role.SAMPLER, names)
    free = cluster.capacities(names) - demand_vector(job, Role.STORE, names)
    wanted = demand > 0
    if not wanted.any():
        return job.num_samplers
    most = np.floor(free[:, wanted] / demand[wanted] * (1 + 1e-12)).min(axis=1).max()
    return int(min(job.num_samplers, max(0, most)))


@hot
def load_in(model, m, samplers, trainers, servers, remote):
    """Incoming load of machine m; `remote` counts remote samplers of its trainers."""
    shards = servers * (model.num_trainers - trainers) + trainers * (model.num_servers - servers)
    ring = model.ring_in[m] if 0 < trainers < model.num_trainers else 0.0
    return (
        model.graph_in[m, samplers] + model.batch_in[m] * remote + model.sync_in[m] * shards + ring
    )


@hot
def load_out(model, m, samplers, trainers, servers, remote):
    """Outgoing load of machine m; `remote` counts its samplers with a remote trainer."""
    shards = servers * (model.num_trainers - trainers) + trainers * (model.num_servers - servers)
    ring = model.ring_out[m] if 0 < trainers < model.num_trainers else 0.0
    return (
        model.graph_out[m, samplers]
        + model.batch_out[m] * remote
        + model.sync_out[m] * shards
        + ring
    )


def port_loads(model: LoadModel, placement: Placement) -> tuple[np.ndarray, np.ndarray]:
    """Incoming and outgoing load of every machine under a placement."""
    num = model.num_machines
    samplers = np.array(placement.samplers, dtype=np.int64)
    trainers = np.array(placement.trainers, dtype=np.int64)
    on = [
        np.bincount(np.array(machines, dtype=np.int64), minlength=num)
        for machines in (placement.samplers, placement.trainers, placement.servers)
    ]
    home = np.repeat(trainers, model.per_trainer)
    apart = samplers != home
    arriving = np.bincount(home[apart], minlength=num)
    leaving = np.bincount(samplers[apart], minlength=num)
    every = np.arange(num)
    shards = on[2] * (model.num_trainers - on[1]) + on[1] * (model.num_servers - on[2])
    ring = (on[1] > 0) & (on[1] < model.num_trainers)
    incoming = model.graph_in[every, on[0]] + model.batch_in * arriving
    outgoing = model.graph_out[every, on[0]] + model.batch_out * leaving
    incoming += model.sync_in * shards + model.ring_in * ring
    outgoing += model.sync_out * shards + model.ring_out * ring
    return incoming, outgoing
