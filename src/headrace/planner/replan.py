"""Replan a running job after machine loss or a measured change.

A run blocks on its new plan after machine loss, so `replan` compares a few quick placements by
their objective within milliseconds. `replan_measured` searches and simulates while the run
continues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Job, JobKind, Role
from headrace.core.placement import Placement, PlacementFile
from headrace.core.plan import Fingerprints, Plan, problem_of
from headrace.core.profile import Problem, Profile, StoreTraffic, TaskTime
from headrace.planner.cost.objective import Objective, evaluate
from headrace.planner.cost.shares import share_bound_s, share_limits
from headrace.planner.cost.speed_classes import compute_bound_s
from headrace.planner.cost.traffic_matrix import traffic_of
from headrace.planner.methods import anneal, place
from headrace.planner.methods.by_speed import Found, search_by_speed
from headrace.planner.planner import PREDICTED_ITERATIONS, predict, terms_of
from headrace.planner.selection import NUM_PLACEMENTS

METHOD = "replanned"
"""Method name in replanned plans."""

_SAME_SPEED = 0.1
"""Relative difference of measured times up to which machines are equally fast."""

_NUM_PACKINGS = 8
"""Number of `ifs` placements, each with another machine order, in addition to `colocate`."""


def replan(plan: Plan, machines: Collection[str]) -> Plan:
    """Replan a job for the available machines of its cluster; `plan` itself if none is missing.

    The global batch is unchanged. The number of trainers or parameter servers is reduced only if
    they do not all fit. Graph partitions of lost machines move to the machines with the fewest
    partitions.

    Raises:
        SpecError: No machine is left.
        InfeasibleError: Not even one trainer fits.
    """
    hosts = plan.cluster.hosts
    left = [m for m, host in enumerate(hosts) if host.name in machines]
    if len(left) == len(hosts):
        return plan
    if not left:
        raise SpecError("no machine of the plan is left", "restart at least one of them")
    cluster = Cluster(machines=tuple(hosts[m] for m in left))
    parts = _move(plan.part_machines, left)
    if plan.job.kind is JobKind.FULL_GRAPH:
        # Rows between trainers with other partitions are not known.
        plan = plan.model_copy(
            update={
                "job": plan.job.model_copy(update={"swaps": ()}),
                "profile": plan.profile.model_copy(update={"full_graph": None}),
            }
        )
    profile = _fold(plan.profile, parts, len(left))
    problem, placement, objective = _place(cluster, plan, profile, parts)
    seeds, shares = _seeds(problem, parts), None
    if plan.shares is not None and problem.job.trainers == plan.job.trainers:
        # The run keeps the batches of its first plan.
        shares = plan.shares
        ratios = np.array(shares) / problem.job.batch_size
        seeds = seeds * np.repeat(ratios, problem.job.samplers_per_trainer)[:, None]
        objective = evaluate(problem, placement, seeds)
    more = {"parts": parts, "shares": shares}
    return _plan_of(plan, problem, placement, seeds, objective, more)


@dataclass(frozen=True)
class Replanned:
    """A plan for changed machines; simulated time per iteration, and that of the current plan."""

    plan: Plan
    time_s: float
    before_s: float


def replan_measured(plan: Plan, cluster: Cluster, profile: Profile) -> Replanned:
    """Replan a running job with its measured cluster and profile.

    The policy and the seeds of each sampler are unchanged, so that resumed batches have the same
    seeds.

    Raises:
        SpecError: The profile does not match the job.
    """
    seeds = plan.seeds
    # A short simulation would mostly cover pipeline fill, which the run has completed.
    longer = {"iterations": max(plan.job.iterations, PREDICTED_ITERATIONS)}
    job = problem_of(plan).with_profile(profile).job.model_copy(update=longer)
    problem, planned = Problem(cluster, job, profile), Problem(cluster, plan.job, profile)

    def simulated_s(placement: Placement) -> float:
        found = predict(problem, placement, seeds, plan.policy, plan.seed)
        if found is None:
            return evaluate(problem, placement, seeds).time_s
        return found.iteration_time_s

    is_local = plan.seed_mix is not None

    def search(each: Problem) -> Found:
        candidates, _ = anneal.shortlist(each, seed=plan.seed, local_seeds=is_local)
        return Found([candidate.placement for candidate in candidates], 0.0)

    grouped = problem._replace(profile=_with_few_speeds(profile))
    found = search_by_speed(grouped, search, local_seeds=is_local).placements[:NUM_PLACEMENTS]
    now = plan.placed
    placements = [now, *(_renamed(each, now, job, seeds) for each in found)]
    if plan.shares is not None:
        shares = np.array(plan.shares)
        placements[1:] = [
            each for each in placements[1:] if (shares <= share_limits(problem, each)).all()
        ]
    times_s = {placement: simulated_s(placement) for placement in placements}
    best = min(times_s, key=lambda placement: times_s[placement])
    objective = evaluate(planned, best, seeds)
    kept = {
        "parts": plan.parts,
        "shares": plan.shares,
        "seed_mix_name": plan.seed_mix_name,
        "seed_mix": plan.seed_mix,
        "predicted": predict(planned, best, seeds, plan.policy, plan.seed),
    }
    made = _plan_of(plan, planned, best, seeds, objective, kept)
    return Replanned(made, times_s[best], times_s[now])


def _with_few_speeds(profile: Profile) -> Profile:
    """Times of machines that differ by a tenth or less are equal: every speed is a search."""
    times: dict[Role, dict[str, TaskTime]] = {}
    for role, by_kind in profile.task_times.items():
        times[role], first_s = {}, 0.0
        for kind, time in sorted(by_kind.items(), key=lambda item: (item[1].mean, item[0])):
            if time.mean > first_s * (1 + _SAME_SPEED):
                first_s = time.mean
            times[role][kind] = time.model_copy(update={"mean": first_s})
    return profile.model_copy(update={"task_times": times})


def _plan_of(
    plan: Plan,
    problem: Problem,
    placement: Placement,
    seeds: np.ndarray,
    objective: Objective,
    more: Mapping[str, Any],
) -> Plan:
    """Plan with another placement and the policy and seed of `plan`; `more` sets further fields."""
    has_shares = more.get("shares") is not None
    bound_s = share_bound_s(problem) if has_shares else compute_bound_s(problem)
    bound_s = min(bound_s, objective.time_s)
    traffic = traffic_of(problem, placement, seeds)
    # Sums of machines need the sizes of graph partitions.
    memory = None if plan.memory is None else plan.memory.model_copy(update={"machines": ()})
    return Plan(
        method=METHOD,
        policy=plan.policy,
        placement=PlacementFile.of(placement, problem.cluster),
        seed=plan.seed,
        asked=plan.asked,
        terms=terms_of(objective),
        bound_s=bound_s,
        gap=objective.time_s / bound_s - 1 if bound_s > 0 else 0.0,
        proven=False,
        network_bytes=traffic.network_bytes,
        uniform_network_bytes=traffic.network_bytes,
        fingerprints=Fingerprints.of(problem),
        memory=memory,
        **problem._asdict(),
        **more,
    )


def _renamed(placement: Placement, now: Placement, job: Job, seeds: np.ndarray) -> Placement:
    """Permute trainers so that samplers are close to their seeds, else where they are now."""
    num, per_trainer = job.trainers, job.samplers_per_trainer
    machines = np.array(placement.samplers).reshape(num, per_trainer)
    before = np.array(now.samplers).reshape(num, per_trainer)
    near = np.zeros((num, num))
    for trainer, own in enumerate(seeds.reshape(num, per_trainer, -1)):
        num_same = (machines == before[trainer]).sum(axis=1)
        num_same += np.array(placement.trainers) == now.trainers[trainer]
        near[trainer] = own[np.arange(per_trainer), machines].sum(axis=1) + 1e-6 * num_same
    chosen = np.zeros(num, dtype=int)
    for _ in range(num):
        trainer, other = divmod(int(np.argmax(near)), num)
        chosen[trainer] = other
        near[trainer, :] = near[:, other] = -1.0
    return Placement(
        samplers=tuple(machines[chosen].ravel().tolist()),
        trainers=tuple(placement.trainers[other] for other in chosen),
        servers=placement.servers,
    )


def _place(
    cluster: Cluster, plan: Plan, profile: Profile, parts: tuple[int, ...]
) -> tuple[Problem, Placement, Objective]:
    """Largest job that fits, and the best of a few quick placements."""
    shortage: InfeasibleError | None = None
    for job in _smaller_jobs(plan.job):
        problem = Problem(cluster, job, profile)
        try:
            placements = [place("colocate", problem, plan.seed)]
            placements += [place("ifs", problem, plan.seed + n) for n in range(_NUM_PACKINGS)]
        except InfeasibleError as error:
            # The shortage of the unreduced job is the most informative one.
            shortage = shortage or error
            continue
        seeds = _seeds(problem, parts)
        objectives = [evaluate(problem, each, seeds) for each in placements]
        best = min(range(len(placements)), key=lambda number: objectives[number].time_s)
        return problem, placements[best], objectives[best]
    assert shortage is not None
    raise shortage


def _smaller_jobs(job: Job) -> Iterator[Job]:
    """The job, then jobs with fewer trainers or servers and the same global batch."""
    for trainers in range(job.trainers, 0, -1):
        for servers in range(max(job.num_servers, 1), 0, -1):
            # Rounded up, because all trainers of a plan have equal batches.
            batch_size = -(-job.trainers * job.batch_size // trainers)
            changes = {"trainers": trainers, "batch_size": batch_size}
            if job.num_servers:
                changes["parameter_servers"] = servers
            yield job.model_copy(update=changes)


def _move(parts: tuple[int, ...], left: list[int]) -> tuple[int, ...]:
    """Machine index of each graph partition among the remaining machines."""
    number = {machine: n for n, machine in enumerate(left)}
    moved = [number.get(machine, -1) for machine in parts]
    held = np.bincount([n for n in moved if n >= 0], minlength=len(left))
    for part, n in enumerate(moved):
        if n < 0:
            moved[part] = int(np.argmin(held))
            held[moved[part]] += 1
    return tuple(moved)


def _seeds(problem: Problem, parts: tuple[int, ...]) -> np.ndarray:
    """See `Plan.seeds`."""
    num_machines = problem.cluster.num_machines
    if problem.profile.part_seeds is not None:
        return problem.uniform_seeds
    counts = np.bincount(parts, minlength=num_machines)
    seeds: np.ndarray = problem.uniform_seeds * (counts * (num_machines / len(parts)))
    return seeds


def _fold(profile: Profile, parts: tuple[int, ...], num_machines: int) -> Profile:
    """Convert a measured traffic matrix and seed counts from partitions to machines."""
    weights = np.ones(len(parts))
    if profile.part_seeds is not None:
        weights = np.maximum(np.array(profile.part_seeds, dtype=np.float64), 1e-9)
        sums = np.bincount(parts, weights=profile.part_seeds, minlength=num_machines)
        profile = profile.model_copy(update={"part_seeds": tuple(sums.astype(int).tolist())})
    matrix = np.array(profile.store_traffic.matrix)
    if not matrix.size:
        return profile
    sends = np.zeros((len(parts), num_machines))
    sends[np.arange(len(parts)), parts] = 1.0
    owned = sends * weights[:, None]
    counts = owned.sum(axis=0)
    # Machines without partitions have no seeds; the value is not used.
    shares = np.where(counts > 0, owned / np.where(counts > 0, counts, 1.0), 1.0 / len(parts))
    folded = shares.T @ matrix @ sends
    traffic = StoreTraffic(
        matrix=tuple(tuple(float(entry) for entry in row) for row in folded),
        variation=profile.store_traffic.variation,
        num_iterations=profile.store_traffic.num_iterations,
    )
    return profile.model_copy(update={"store_traffic": traffic})
