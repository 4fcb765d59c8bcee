"""A lower bound of the objective T over all placements, term by term."""

from __future__ import annotations

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.job import UNLIMITED_WINDOW, Job, Role, Sync
from headrace.core.profile import Profile
from headrace.planner.bound import load_bound
from headrace.planner.loads import LoadModel, build_load_model


def time_bound_s(
    cluster: Cluster,
    job: Job,
    profile: Profile,
    *,
    local_seeds: bool,
    load_bound_s: float | None = None,
) -> float:
    """Seconds per iteration below which no placement's objective is.

    The network's part is the count relaxation of `bound`. The others forget the network: a task is
    at best on the machine class that is fastest for its role, and every machine has a store.

    Args:
        cluster: The machines.
        job: The job; it must fit.
        profile: Its times and volumes.
        local_seeds: Whether samplers take the seeds of their own machine first.
        load_bound_s: What `bound.load_bound` gave, if that is known.
    """
    compute_s = compute_bound_s(cluster, job, profile)
    is_measured = local_seeds and bool(profile.store_traffic.matrix)
    if load_bound_s is not None and not is_measured:
        return max(load_bound_s, compute_s)
    model = build_load_model(cluster, job, profile, local_seeds=local_seeds)
    if is_measured:
        model = _at_best(model, cluster, job, profile)
    return load_bound(model, above=compute_s)


def compute_bound_s(cluster: Cluster, job: Job, profile: Profile) -> float:
    """The part of the bound that computing alone gives."""
    kinds = {machine.kind for machine in cluster.hosts}

    def fastest_s(role: Role) -> float:
        fastest_s = min(profile.task_time(role, kind).mean for kind in kinds)
        return fastest_s * profile.seed_scale(role, job)

    store_s = max(profile.task_time(Role.STORE, kind).mean for kind in kinds)
    sampler_s, trainer_s = fastest_s(Role.SAMPLER), fastest_s(Role.TRAINER)
    cycle_s = trainer_s
    if job.sync is Sync.PS:
        cycle_s += fastest_s(Role.SERVER)
    elif job.trainers > 1:
        cycle_s += 2 * (job.trainers - 1) * fastest_s(Role.RING)
    latency_s = max(store_s + sampler_s, sampler_s + trainer_s)
    waiting_s = 0.0 if job.window == UNLIMITED_WINDOW else latency_s / job.window
    return max(store_s, sampler_s, cycle_s, waiting_s)


def _at_best(model: LoadModel, cluster: Cluster, job: Job, profile: Profile) -> LoadModel:
    """Tables for a measured matrix: seeds of other parts come from where they load least.

    Which parts they come from depends on all machines, which the tables cannot say; any answer
    between the best and the worst part is possible, so a bound must assume the best.
    """
    num = cluster.num_machines
    if num == 1:
        return model
    matrix = profile.store_traffic.bytes_per_seed_matrix(num)
    wanted = job.batch_size / job.samplers_per_trainer
    demand = wanted * np.arange(model.graph_in.shape[1])[None, :]
    supply = wanted * job.num_samplers / num
    own = np.minimum(supply, demand)
    foreign = demand - own
    beside = matrix.diagonal()[:, None]
    # Bytes that arrive at machine m per seed of part j: all but those of the store on m.
    arriving = matrix.sum(axis=1)[:, None] - matrix
    others = ~np.eye(num, dtype=bool)
    least = np.where(others, arriving, np.inf).min(axis=0)[:, None]
    most_beside = np.where(others, matrix, 0.0).max(axis=0)[:, None]
    received = own * arriving.diagonal()[:, None] + foreign * least
    sent = supply * matrix.sum(axis=0)[:, None] - own * beside - foreign * most_beside
    return model._replace(
        graph_in=np.ascontiguousarray(received / cluster.nic_in_bytes_per_s()[:, None]),
        graph_out=np.ascontiguousarray(
            np.maximum(sent, 0.0) / cluster.nic_out_bytes_per_s()[:, None]
        ),
    )
