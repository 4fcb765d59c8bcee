"""Plans with traffic sampled from a partitioned graph, and with a cache that fits the machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from headrace.core.job import Role
from headrace.core.plan import Plan, problem_of
from headrace.core.profile import Problem
from headrace.core.traffic import PLAIN, TRAFFIC_NAMES, Traffic, traffic_settings
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.planner.explain import PlanChange
from headrace.profiling.from_graph import with_graph

_MEMORY = "memory"

_CACHE_SHARE = 0.5
"""Largest share of a machine's free memory for caches."""


def plan_with_graph(
    problem: Problem,
    graph: PartitionedGraph,
    traffic: Traffic,
    make: Callable[[Problem], Plan],
    num_neighbors: Sequence[int] | None = None,
    *,
    seed: int = 0,
    cache_bytes: float | None = None,
) -> Plan:
    """Plan with sampled traffic; each sampler has a cache if the machines have memory for it.

    Args:
        problem: The machines, the job and its profile.
        graph: The partitioned graph.
        traffic: Settings that reduce the traffic, without a cache.
        make: Makes a plan.
        num_neighbors: Neighbours per hop; see `with_graph`.
        seed: Random seed of the samples.
        cache_bytes: Memory of each sampler's cache; None for what is worthwhile and fits.
    """

    def planned(most_bytes: float | None, parts: float) -> Plan:
        profile = with_graph(
            problem.profile,
            graph,
            problem.job,
            num_neighbors,
            seed=seed,
            traffic=traffic,
            most_cache_bytes=most_bytes,
            cache_bytes=cache_bytes,
            parts_per_cache=parts,
        )
        return make(problem.with_profile(profile))

    plan, most_bytes = planned(None, 1.0), None
    parts = parts_per_cache(plan)
    if parts > 1 and plan.profile.traffic is not None and plan.profile.traffic.cache_bytes:
        plan = planned(None, parts)
    for _ in range(2 if cache_bytes is None else 0):
        used = plan.profile.traffic
        free_bytes = cache_memory(plan, graph)
        if used is None or free_bytes is None or used.cache_bytes <= free_bytes:
            break
        # Another placement may have less memory where its samplers are.
        most_bytes = free_bytes if most_bytes is None else 0.0
        plan = planned(most_bytes, parts)
    return plan


def parts_per_cache(plan: Plan) -> float:
    """Mean number of partitions of other machines of which a sampler has seeds; at least 1."""
    away = np.array(plan.seeds) > 0
    away[np.arange(len(away)), plan.placed.samplers] = False
    counts = away.sum(axis=1)
    return float(counts[counts > 0].mean()) if counts.any() else 1.0


def cache_memory(plan: Plan, graph: PartitionedGraph) -> float | None:
    """Memory for the cache of each sampler; None if the cluster file does not limit it."""
    job, placed = plan.job, plan.placed
    estimated = {} if plan.memory is None else {m.machine: m for m in plan.memory.machines}
    limits = []
    for m, host in enumerate(plan.cluster.hosts):
        num_samplers = placed.samplers.count(m)
        if _MEMORY not in host.resources or not num_samplers:
            continue
        counts = {
            Role.SAMPLER: num_samplers,
            Role.TRAINER: placed.trainers.count(m),
            Role.SERVER: placed.servers.count(m),
        }
        used = sum(num * job.demand(role).get(_MEMORY, 0.0) for role, num in counts.items())
        store = job.demand(Role.STORE).get(_MEMORY)
        used += graph.part(m).num_bytes if store is None else store
        if plan.memory is not None:
            caches = num_samplers * plan.memory.of(Role.SAMPLER).made_of["cache"]
            used = estimated[host.name].needed_bytes - caches
        limits.append(max(0.0, host.resources[_MEMORY] - used) * _CACHE_SHARE / num_samplers)
    return min(limits) if limits else None


def traffic_changes(
    plan: Plan, graph: PartitionedGraph, num_neighbors: Sequence[int] | None = None
) -> Iterator[PlanChange]:
    """Other traffic settings for a plan, each with sampled traffic and a cache."""
    problem, used = problem_of(plan), plan.profile.traffic or PLAIN
    most_bytes = cache_memory(plan, graph)
    for name in TRAFFIC_NAMES:
        wanted = traffic_settings(name)
        if name == "exact" and any("float" in form for form in graph.feature_forms):
            wanted = wanted.model_copy(update={"features": "auto"})
        if name == used.name and wanted.features == used.features and used.cache_bytes:
            continue
        profile = with_graph(
            problem.profile,
            graph,
            problem.job,
            num_neighbors,
            seed=plan.seed,
            traffic=wanted,
            most_cache_bytes=most_bytes,
            parts_per_cache=parts_per_cache(plan),
        )
        if profile.traffic is None or profile.store_traffic == problem.profile.store_traffic:
            continue
        changed = problem.with_profile(profile)
        yield PlanChange(f"traffic {profile.traffic.sentence()}", changed)
