"""Lower bound of the largest NIC load over all placements, by relaxing task identities.

For a load T, a machine with w trainers and p servers can host a range of sampler counts without a
port above T; with fewer samplers its store sends more. A dynamic programme over (trainers, servers)
sums these ranges to check whether all tasks fit. A batch counts as local whenever the counts allow
it. If the check fails, no placement has load T, so bisection over T gives a bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.core.profile import Problem
from headrace.planner.cost.nic_loads import LoadModel, build_load_model, load_in, load_out
from headrace.policies.compiled import hot
from headrace.policies.interpreted import CALLER

_MOST_STATES = 20_000_000
"""With more state transitions a check takes over 0.1 s; servers are then ignored."""


INFEASIBLE_S = 1e12
"""No job has such a load: the tasks do not fit."""

_NUM_CHECKS = 50
"""Checks of a bisection."""

_STATE_S = 5e-6
"""Seconds per state of a check, if interpreted."""


def state_space(model: LoadModel) -> tuple[int, int, int]:
    """Counted servers, most trainers and most servers per machine; 0 servers if too many states."""
    most_trainers = min(model.num_trainers, _most(model, 1))
    most_servers = min(model.num_servers, _most(model, 2))
    states = model.num_machines * model.num_trainers * (most_trainers + 1)
    if states * (model.num_servers + 1) * (most_servers + 1) > _MOST_STATES:
        return 0, most_trainers, 0
    return model.num_servers, most_trainers, most_servers


def interpreted_s(
    model: LoadModel, num_servers: int, most_trainers: int, most_servers: int
) -> float:
    """Estimated seconds of one pass over the state space by interpreted code."""
    num_ranges = model.num_machines * (most_trainers + 1) * (most_servers + 1)
    num_states = int(model.graph_in.shape[1]) + model.num_trainers * (num_servers + 1)
    return num_ranges * num_states * _STATE_S


def load_bound(model: LoadModel, above: float = 0.0) -> float:
    """Lower bound of the largest load, at least `above`, for tabulated loads."""
    num_servers, most_trainers, most_servers = state_space(model)
    if num_servers < model.num_servers and 2 * most_trainers > model.num_trainers:
        # A server next to more than half of all trainers saves traffic: ignore sync traffic.
        nothing = np.zeros(model.num_machines)
        model = model._replace(sync_in=nothing, sync_out=nothing)
    low = above
    space = (num_servers, most_trainers, most_servers)
    estimate_s = _NUM_CHECKS * interpreted_s(model, *space)
    fits = CALLER.choose(_fits, (model, low, *space), estimate_s)
    if above > 0 and fits(model, above, *space):
        return above
    high = float(max(model.graph_in.max(), model.graph_out.max(), 1e-9, 2 * above))
    while not fits(model, high, *space):
        low, high = high, 2 * high
        if high > INFEASIBLE_S:
            return high
    while high - low > 1e-11 * high:
        middle = (low + high) / 2
        if fits(model, middle, *space):
            high = middle
        else:
            low = middle
    return low


def _most(model: LoadModel, role: int) -> int:
    demand = model.demand[role]
    if not (demand > 0).any():
        return 1 << 30
    return int(np.floor(model.capacity[:, demand > 0] / demand[demand > 0]).min(axis=1).max())


@hot
def sampler_range(model, m, w, p, limit):
    """Fewest and most samplers next to w trainers and p servers with all ports within the limit."""
    first, last = -1, -1
    for s in range(model.graph_in.shape[1]):
        fits = True
        for r in range(model.demand.shape[1]):
            need = s * model.demand[0, r] + w * model.demand[1, r] + p * model.demand[2, r]
            fits = fits and need <= model.capacity[m, r] * (1 + 1e-9)
        if not fits:
            break
        local = min(s, w * model.per_trainer)
        arriving = w * model.per_trainer - local
        if (
            load_in(model, m, s, w, p, arriving) <= limit
            and load_out(model, m, s, w, p, s - local) <= limit
        ):
            if first < 0:
                first = s
            last = s
    return first, last


@njit(cache=True)
def _fits(model, most_load, num_servers, most_trainers, most_servers):
    """Whether task counts per machine exist that keep every port within `most_load`."""
    num_samplers = model.num_trainers * model.per_trainer
    num_trainers = model.num_trainers
    nothing = num_samplers + 1
    low = np.full((num_trainers + 1, num_servers + 1), nothing, np.int64)
    high = np.full((num_trainers + 1, num_servers + 1), -1, np.int64)
    low[0, 0] = high[0, 0] = 0
    new_low = np.empty_like(low)
    new_high = np.empty_like(high)
    limit = most_load * (1 + 1e-12)
    for m in range(model.num_machines):
        new_low.fill(nothing)
        new_high.fill(-1)
        possible = False
        for w in range(most_trainers + 1):
            for p in range(most_servers + 1):
                first, last = sampler_range(model, m, w, p, limit)
                if first < 0:
                    continue
                possible = True
                for i in range(num_trainers + 1 - w):
                    for j in range(num_servers + 1 - p):
                        if high[i, j] >= 0:
                            new_low[i + w, j + p] = min(new_low[i + w, j + p], low[i, j] + first)
                            new_high[i + w, j + p] = max(new_high[i + w, j + p], high[i, j] + last)
        if not possible:
            return False
        low, new_low = new_low, low
        high, new_high = new_high, high
    at = num_servers
    return low[num_trainers, at] <= num_samplers <= high[num_trainers, at]


def network_model(problem: Problem, *, local_seeds: bool) -> LoadModel:
    """Loads for a lower bound: with a measured matrix and local seeds, those of the best case."""
    model = build_load_model(problem, local_seeds=local_seeds)
    if local_seeds and problem.profile.store_traffic.matrix:
        return _at_best(model, problem)
    return model


def _at_best(model: LoadModel, problem: Problem) -> LoadModel:
    """Tables for a measured matrix in which remote seeds come from the cheapest partition.

    The partition of a remote seed depends on all machines and is not part of the tables, so a bound
    assumes the best case.
    """
    cluster, job, profile = problem
    num = cluster.num_machines
    if num == 1:
        return model
    matrix = profile.store_bytes_per_seed(job, num)
    wanted = job.batch_size / job.samplers_per_trainer
    demand = wanted * np.arange(model.graph_in.shape[1])[None, :]
    weights = profile.part_weights(num)
    supply: Any = wanted * job.num_samplers / num
    requested = supply * matrix.sum(axis=0)[:, None]
    if weights is not None:
        supply = wanted * job.num_samplers * weights[:, None]
        requested = wanted * job.num_samplers * (weights @ matrix)[:, None]
    own = np.minimum(supply, demand)
    foreign = demand - own
    beside = matrix.diagonal()[:, None]
    # Bytes that machine m receives per seed of partition j, without those of its own store.
    arriving = matrix.sum(axis=1)[:, None] - matrix
    others = ~np.eye(num, dtype=bool)
    least = np.where(others, arriving, np.inf).min(axis=0)[:, None]
    most_beside = np.where(others, matrix, 0.0).max(axis=0)[:, None]
    received = own * arriving.diagonal()[:, None] + foreign * least
    sent = requested - own * beside - foreign * most_beside
    return model._replace(
        graph_in=np.ascontiguousarray(received / cluster.nic_in_bytes_per_s()[:, None]),
        graph_out=np.ascontiguousarray(
            np.maximum(sent, 0.0) / cluster.nic_out_bytes_per_s()[:, None]
        ),
    )
