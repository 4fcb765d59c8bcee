"""Batch shares: seeds of each trainer, so that slow machines or NICs do not hold others back.

Shares are integers with the sum of equal shares. Balanced shares let all trainers and samplers
take the same time on the profile's growth curves. The best shares are between equal and balanced
ones, or near them: where NICs limit the time, balanced shares can be much worse than equal ones.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headrace.core.job import Role
from headrace.core.placement import Placement, demand_vector, resource_names
from headrace.core.profile import Problem
from headrace.planner.cost.objective import evaluate
from headrace.planner.cost.seed_mix import Shares, seeds_of

_BLENDS = np.linspace(0.0, 1.0, 9)[1:]
"""Weights of balanced shares that are tried; 0 is equal shares."""

_STEPS = (0.32, 0.16, 0.08, 0.04, 0.02, 0.01)
"""Seeds to move between trainers, relative to the batch size."""

_MOST_EVALUATIONS = 300
_SMALLEST_GAIN = 1e-3
"""Smallest relative gain for which shares are unequal."""

_EQUAL_SPEEDS = (0.25, 2.0)
"""Smallest and largest share, relative to the batch size, where all machines are equally fast:
bandwidth alone is no reason to leave a trainer without work."""

_SMALLEST_GAIN_AT_EQUAL_SPEEDS = 0.02

_SAME_SPEED = 0.02
"""Relative difference of times up to which machines are equally fast."""

_MEMORY = "memory"
_GRID = 512
_TABLE_ERROR = 1e-4
_BISECTIONS = 60


def speeds_differ(problem: Problem) -> bool:
    """Whether trainers or samplers take longer on some machines than on others."""
    kinds = {machine.kind for machine in problem.cluster.hosts}
    for role in (Role.TRAINER, Role.SAMPLER):
        times_s = [problem.profile.task_time(role, kind).mean for kind in kinds]
        if max(times_s) > min(times_s) * (1 + _SAME_SPEED):
            return True
    return False


def nics_differ(problem: Problem) -> bool:
    """Whether some machines have faster NICs than others."""
    return len({(machine.nic_in, machine.nic_out) for machine in problem.cluster.hosts}) > 1


def best_shares(
    problem: Problem,
    placement: Placement,
    *,
    local_seeds: bool,
    measure: Callable[[np.ndarray], float] | None = None,
    start: Shares = None,
    smallest_gain: float = _SMALLEST_GAIN,
) -> Shares:
    """Shares that minimise a measure of a placement's seeds; None if equal ones are best.

    Args:
        problem: The machines, the job and its profile.
        placement: The placement.
        local_seeds: Whether samplers take local seeds first.
        measure: Time with these seeds; the objective by default.
        start: Shares to compare besides balanced ones.
        smallest_gain: Smallest relative gain for which shares are unequal; at least 2 % where all
            machines are equally fast.
    """
    measured: dict[tuple[int, ...], float] = {}

    def time_s(shares: np.ndarray) -> float:
        key = tuple(shares.tolist())
        if key not in measured:
            seeds = seeds_of(problem, placement, local_seeds=local_seeds, shares=key)
            measured[key] = (
                evaluate(problem, placement, seeds).time_s if measure is None else measure(seeds)
            )
        return measured[key]

    equal = np.full(problem.job.trainers, problem.job.batch_size)
    equal_s = time_s(equal)
    least, most = 0.0, np.inf
    if not speeds_differ(problem):
        least, most = _EQUAL_SPEEDS
        smallest_gain = max(smallest_gain, _SMALLEST_GAIN_AT_EQUAL_SPEEDS)
    limits = np.minimum(share_limits(problem, placement), most * problem.job.batch_size)
    starts = [equal, *_blends(problem, placement, limits, _BLENDS)]
    if start is not None:
        starts.append(np.array(start))
    best = min(starts, key=time_s)
    least = max(least * problem.job.batch_size, problem.job.samplers_per_trainer)
    best = _descend(problem, placement, best, (least, limits), time_s)
    if time_s(best) >= equal_s * (1 - smallest_gain):
        return None
    return tuple(best.tolist())


def shared_time_s(problem: Problem, placement: Placement, *, local_seeds: bool) -> float:
    """Objective of a placement with equal, balanced or mean shares: a fast estimate of the best."""
    limits = share_limits(problem, placement)
    found = [None, *_blends(problem, placement, limits, np.array([0.5, 1.0]))]
    return min(
        evaluate(
            problem,
            placement,
            seeds_of(
                problem,
                placement,
                local_seeds=local_seeds,
                shares=None if each is None else each.tolist(),
            ),
        ).time_s
        for each in found
    )


def share_bound_s(problem: Problem) -> float:
    """Lower bound of the objective over all placements and shares, from trainer times.

    Every trainer is on one of the fastest machines that have the resources for it.
    """
    cluster, job, profile = problem
    names = resource_names(cluster, job)
    wanted = demand_vector(job, Role.TRAINER, names)
    slots: list[float] = []
    for host, capacity in zip(cluster.hosts, cluster.capacities(names), strict=True):
        ratios = capacity[wanted > 0] / wanted[wanted > 0] * (1 + 1e-9)
        num = min(job.trainers, int(ratios.min(initial=job.trainers)))
        slots += [profile.task_time(Role.TRAINER, host.kind).mean] * num
    fastest_s = np.sort(slots)[: job.trainers]
    no_limits = np.full(len(fastest_s), np.inf)
    balance = _Balance(problem, fastest_s, np.zeros(len(fastest_s)), 0.0, no_limits)
    # Times between the points of the table are interpolated.
    return balance.time_s(float(job.trainers * job.batch_size)) * (1 - _TABLE_ERROR)


def share_limits(problem: Problem, placement: Placement) -> np.ndarray:
    """Most seeds of each trainer that fit the memory of its machine.

    The job's memory demand of a trainer holds for equal shares and grows in proportion to seeds.
    """
    cluster, job, _ = problem
    demand = job.demand(Role.TRAINER).get(_MEMORY, 0.0)
    limits = np.full(job.trainers, np.inf)
    names = resource_names(cluster, job)
    if demand <= 0 or _MEMORY not in names:
        return limits
    column = names.index(_MEMORY)
    free = cluster.capacities(names)[:, column] - placement.usage(cluster, job)[:, column]
    machines = np.array(placement.trainers)
    each = free / np.maximum(np.bincount(machines, minlength=cluster.num_machines), 1)
    limits[:] = np.floor(job.batch_size * (1 + np.maximum(each[machines], 0.0) / demand) + 1e-9)
    return limits


class _Balance:
    """Seeds of trainers that are done within a time."""

    def __init__(
        self,
        problem: Problem,
        trainer_s: np.ndarray,
        sampler_s: np.ndarray,
        sync_s: float,
        limits: np.ndarray,
    ) -> None:
        job, profile = problem.job, problem.profile
        self._trainer_s, self._sampler_s, self._sync_s = trainer_s, sampler_s, sync_s
        self._limits = limits
        total, each = job.trainers * job.batch_size, job.samplers_per_trainer
        self._seeds = np.concatenate([[0.0], np.geomspace(each, 2 * total, _GRID)])
        nominal, trainer_seeds = profile.nominal_seeds(job)
        per_sampler = self._seeds / each
        trainer_time = profile.equivalent_seeds("trainer_time", per_sampler, job)
        self._trainer = _ascending(each * trainer_time / trainer_seeds)
        self._sampler = _ascending(
            profile.equivalent_seeds("sampler_time", per_sampler, job) / nominal
        )

    def seeds(self, time_s: float) -> np.ndarray:
        """Most seeds of each trainer within a time."""
        train = np.interp(
            np.maximum(time_s - self._sync_s, 0.0) / np.maximum(self._trainer_s, 1e-12),
            self._trainer,
            self._seeds,
        )
        sample = np.interp(time_s / np.maximum(self._sampler_s, 1e-12), self._sampler, self._seeds)
        found: np.ndarray = np.minimum(np.minimum(train, sample), self._limits)
        return found

    def time_s(self, total: float) -> float:
        """Smallest time within which all seeds are done."""
        low = 0.0
        high = self._sync_s + float(
            max(
                self._trainer_s.max() * self._trainer[-1], self._sampler_s.max() * self._sampler[-1]
            )
        )
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            if self.seeds(middle).sum() >= total:
                high = middle
            else:
                low = middle
        return high


def _ascending(times: np.ndarray) -> np.ndarray:
    """The largest ascending times that are nowhere longer; measured ones may decrease by noise."""
    return np.minimum.accumulate(times[::-1])[::-1]


def _blends(
    problem: Problem, placement: Placement, limits: np.ndarray, weights: np.ndarray
) -> list[np.ndarray]:
    """Shares between equal and balanced ones."""
    job, profile, hosts = problem.job, problem.profile, problem.cluster.hosts
    trainer_s = np.array(
        [profile.task_time(Role.TRAINER, hosts[m].kind).mean for m in placement.trainers]
    )
    sampler_s = (
        np.array([profile.task_time(Role.SAMPLER, hosts[m].kind).mean for m in placement.samplers])
        .reshape(job.trainers, -1)
        .max(axis=1)
    )
    objective = evaluate(problem, placement)
    slowest_s = float((trainer_s * profile.seed_scale(Role.TRAINER, job)).max())
    sync_s = max(objective.cycle_s - slowest_s, 0.0)
    balance = _Balance(problem, trainer_s, sampler_s, sync_s, limits)
    total = float(job.trainers * job.batch_size)
    balanced = balance.seeds(balance.time_s(total))
    equal = np.full(job.trainers, float(job.batch_size))
    return [
        _whole(equal + weight * (balanced - equal), job.trainers * job.batch_size, limits, problem)
        for weight in weights
    ]


def _whole(wanted: np.ndarray, total: int, limits: np.ndarray, problem: Problem) -> np.ndarray:
    """Integers close to the wanted shares, with the right sum and at least a seed per sampler."""
    least = problem.job.samplers_per_trainer
    wanted = wanted * (total / wanted.sum())
    shares: np.ndarray = np.clip(np.floor(wanted), least, limits).astype(np.int64)
    order = np.argsort(np.floor(wanted) - wanted, kind="stable")
    while shares.sum() != total:
        step = 1 if shares.sum() < total else -1
        changed = False
        for w in order:
            if shares.sum() == total:
                break
            if least <= shares[w] + step <= limits[w]:
                shares[w] += step
                changed = True
        if not changed:
            break
    return shares


def _groups(problem: Problem, placement: Placement) -> list[list[int]]:
    """Trainers that get equal shares: those with the same machines.

    Where all machines are equally fast, those whose machines have equal NICs.
    """
    hosts = problem.cluster.hosts
    samplers = np.array(placement.samplers).reshape(problem.job.trainers, -1)
    by_machine = speeds_differ(problem)
    groups: dict[tuple[float, ...], list[int]] = {}
    for trainer, machine in enumerate(placement.trainers):
        key: tuple[float, ...] = (hosts[machine].nic_in, hosts[machine].nic_out)
        if by_machine:
            key = (machine, *sorted(samplers[trainer].tolist()))
        groups.setdefault(key, []).append(trainer)
    return list(groups.values())


def _descend(
    problem: Problem,
    placement: Placement,
    shares: np.ndarray,
    limits: tuple[float, np.ndarray],
    time_s: Callable[[np.ndarray], float],
) -> np.ndarray:
    """Move seeds between groups of equal trainers as long as the time decreases.

    `limits` are the smallest share, and the largest one of each trainer.
    """
    job = problem.job
    members = _groups(problem, placement)
    num_evaluations = 0
    for step in _STEPS:
        has_moved = True
        while has_moved:
            has_moved = False
            for giver in members:
                for taker in members:
                    if giver is taker or num_evaluations >= _MOST_EVALUATIONS:
                        continue
                    num = max(1, round(step * job.batch_size)) * len(giver) * len(taker)
                    moved = shares.copy()
                    moved[giver] -= num // len(giver)
                    moved[taker] += num // len(taker)
                    if (moved < limits[0]).any() or (moved > limits[1]).any():
                        continue
                    num_evaluations += 1
                    if time_s(moved) < time_s(shares) * (1 - 1e-6):
                        shares, has_moved = moved, True
    return shares
