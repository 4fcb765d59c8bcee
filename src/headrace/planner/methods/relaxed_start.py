"""Start placement from the task counts of the lower bound.

The dynamic programme of the bound yields task counts per machine at that load, and any assignment
of tasks with these counts has this load. If there are too many states to count servers, servers are
placed first.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.core.job import Job
from headrace.core.placement import Placement
from headrace.planner.cost.lower_bound import interpreted_s, sampler_range, state_space
from headrace.planner.cost.nic_loads import LoadModel
from headrace.planner.methods.bin_packing import Counts, give_identities
from headrace.policies.interpreted import CALLER

_ABOVE = (1e-9, 1e-3, 1e-2, 0.1)
"""Relative distances above the bound to try; the first covers rounding only."""


def relaxed_placement(model: LoadModel, job: Job, bound_s: float) -> Placement | None:
    """Placement with a largest load close to the bound; None if there is none."""
    num_servers, most_trainers, most_servers = state_space(model)
    hosted = np.zeros(model.num_machines, np.int64)
    if num_servers < model.num_servers:
        hosted = _host_servers(model)
        model = model._replace(
            graph_in=model.graph_in + (hosted * model.sync_in)[:, None] * model.num_trainers,
            graph_out=model.graph_out + (hosted * model.sync_out)[:, None] * model.num_trainers,
            capacity=model.capacity - hosted[:, None] * model.demand[2],
        )
    for above in _ABOVE:
        limit_s = bound_s * (1 + above)
        counts = _counts(model, job, limit_s, num_servers, most_trainers, most_servers)
        if counts is not None:
            break
    else:
        return None
    order = np.arange(model.num_machines)
    trainer_at, sampler_at = give_identities(counts, order, job.samplers_per_trainer)
    return Placement(
        samplers=tuple(sampler_at.ravel().tolist()),
        trainers=tuple(trainer_at.tolist()),
        servers=tuple(np.repeat(order, counts.servers + hosted).tolist()),
    )


def _counts(
    model: LoadModel,
    job: Job,
    limit_s: float,
    num_servers: int,
    most_trainers: int,
    most_servers: int,
) -> Counts | None:
    space = (num_servers, most_trainers, most_servers)
    trainers, servers, fewest, most = CALLER.call(
        _count, model, limit_s, *space, estimate_s=interpreted_s(model, *space)
    )
    room = most - fewest
    surplus = int(most.sum()) - job.num_samplers
    if trainers.sum() != job.trainers or not 0 <= surplus <= room.sum():
        return None
    # Reduce samplers in proportion to the range; the remainder on machines with the most slack.
    samplers = most - room * surplus // max(1, int(room.sum()))
    left = int(samplers.sum()) - job.num_samplers
    samplers[np.argsort(fewest - samplers, kind="stable")[:left]] -= 1
    return Counts(samplers=samplers, trainers=trainers, servers=servers)


def _host_servers(model: LoadModel) -> np.ndarray:
    """Servers per machine if the programme ignores them: fastest NICs with room first."""
    hosted = np.zeros(model.num_machines, np.int64)
    load_s = np.maximum(model.sync_in, model.sync_out)
    for _ in range(model.num_servers):
        has_room = ((hosted[:, None] + 1) * model.demand[2] <= model.capacity).all(axis=1)
        hosted[int(np.argmin(np.where(has_room, (hosted + 1) * load_s, np.inf)))] += 1
    return hosted


@njit(cache=True)
def _count(model, limit, num_servers, most_trainers, most_servers):
    """Trainers, servers, fewest and most samplers per machine, maximising samplers.

    Trainers are all zero if no counts keep every port within the limit.
    """
    num, num_trainers = model.num_machines, model.num_trainers
    most = np.full((num_trainers + 1, num_servers + 1), -1, np.int64)
    new_most = np.empty_like(most)
    most[0, 0] = 0
    ranges = np.full((num, most_trainers + 1, most_servers + 1, 2), -1, np.int64)
    choice = np.full((num, num_trainers + 1, num_servers + 1), -1, np.int32)
    for m in range(num):
        new_most.fill(-1)
        for w in range(most_trainers + 1):
            for p in range(most_servers + 1):
                first, last = sampler_range(model, m, w, p, limit)
                ranges[m, w, p] = first, last
                if first < 0:
                    continue
                for i in range(num_trainers + 1 - w):
                    for j in range(num_servers + 1 - p):
                        if most[i, j] >= 0 and most[i, j] + last > new_most[i + w, j + p]:
                            new_most[i + w, j + p] = most[i, j] + last
                            choice[m, i + w, j + p] = w * (most_servers + 1) + p
        most, new_most = new_most, most
    trainers, servers = np.zeros(num, np.int64), np.zeros(num, np.int64)
    fewest, largest = np.zeros(num, np.int64), np.zeros(num, np.int64)
    i, j = num_trainers, num_servers
    for m in range(num - 1, -1, -1):
        if choice[m, i, j] < 0:
            trainers.fill(0)
            break
        w, p = choice[m, i, j] // (most_servers + 1), choice[m, i, j] % (most_servers + 1)
        trainers[m], servers[m] = w, p
        fewest[m], largest[m] = ranges[m, w, p]
        i, j = i - w, j - p
    return trainers, servers, fewest, largest
