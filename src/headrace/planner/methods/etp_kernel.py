"""Markov chain of ETP (DGTP, Alg. 3), compiled; it returns for each simulation."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.planner.methods.critical_path import ROUNDING
from headrace.planner.methods.critical_path_kernel import least_makespan_s, path_length_s
from headrace.policies.compiled import hot, hot_loop


class Chain(NamedTuple):
    """State of the chain; M machines, R resources."""

    machines: Any
    """Machine of each sampler, then trainer, then server."""
    role: Any
    """0, 1, 2 for a sampler, trainer, server."""
    counts: Any
    """Tasks per role and machine, shape (3, M)."""
    demands: Any
    """Resource demand per role, shape (3, R)."""
    store: Any
    """Resource demand of a store, shape (R,)."""
    capacities: Any
    """Shape (M, R)."""
    violation: Any
    """Relative capacity violations per machine, summed over resources."""
    avail: Any
    """Scratch: machines available to a task."""
    draws: Any
    """State of the random generator."""
    step: Any
    """Transitions so far."""
    seen: Any
    """Simulation candidates, one row each."""
    seen_at: Any
    """Hash table of their rows, -1 if empty; its size is a power of two."""
    num_seen: Any
    num_hopeless: Any
    """Candidates whose makespan bound exceeds the best makespan."""
    values: Any
    """Current cost, first cost, smallest feasible cost, smallest makespan (set by the caller)."""


COST, FIRST_COST, MIN_COST, BEST_S = 0, 1, 2, 3

_PATIENCE = 1000
"""Consecutive tasks without an available machine before all tasks are checked."""


@hot
def _next(draws):
    """Next 64 random bits (SplitMix64)."""
    draws[0] += np.uint64(0x9E3779B97F4A7C15)
    x = draws[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@hot
def _below(draws, num):
    """Random integer in [0, num)."""
    return np.int64((_next(draws) >> np.uint64(32)) * np.uint64(num) >> np.uint64(32))


@hot
def _uniform(draws):
    """Random float in [0, 1)."""
    return np.float64(_next(draws) >> np.uint64(11)) * 2.0**-53


@hot
def _used(chain, machine, resource):
    used = chain.store[resource]
    for role in range(3):
        used += chain.counts[role, machine] * chain.demands[role, resource]
    return used


@hot
def _exceeds(used, capacity):
    return used - capacity > ROUNDING * max(capacity, 1.0)


@hot
def _find_available(chain, task, relaxation):
    """List the other machines that can host a task under relaxed capacities (eq. 28)."""
    role, num = chain.role[task], 0
    num_machines, num_resources = chain.capacities.shape
    for machine in range(num_machines):
        fits = machine != chain.machines[task]
        for r in range(num_resources):
            demand = chain.demands[role, r]
            if fits and demand > 0.0:
                relaxed = (1.0 + relaxation) * chain.capacities[machine, r]
                fits = not _exceeds(_used(chain, machine, r) + demand, relaxed)
        if fits:
            chain.avail[num] = machine
            num += 1
    return num


@hot
def _measure(chain, machine):
    """Update the capacity violation of a machine (eq. 27)."""
    total = 0.0
    for r in range(chain.capacities.shape[1]):
        used, capacity = _used(chain, machine, r), chain.capacities[machine, r]
        if _exceeds(used, capacity):
            total += (used - capacity) / capacity
    chain.violation[machine] = total


@hot
def _move(chain, task, machine):
    role, before = chain.role[task], chain.machines[task]
    chain.counts[role, before] -= 1
    chain.counts[role, machine] += 1
    chain.machines[task] = machine
    _measure(chain, before)
    _measure(chain, machine)


@hot
def _record(chain):
    """Record the current placement; return whether it is new."""
    mixed = np.uint64(0xCBF29CE484222325)
    for machine in chain.machines:
        mixed = (mixed ^ np.uint64(machine)) * np.uint64(0x100000001B3)
    mixed ^= mixed >> np.uint64(32)
    size = len(chain.seen_at)
    at = np.int64(mixed & np.uint64(size - 1))
    while chain.seen_at[at] >= 0:
        row = chain.seen[chain.seen_at[at]]
        same = True
        for j in range(len(row)):
            same &= row[j] == chain.machines[j]
        if same:
            return False
        at = (at + 1) & (size - 1)
    num = chain.num_seen[0]
    chain.seen_at[at] = num
    for j in range(len(chain.machines)):
        chain.seen[num, j] = chain.machines[j]
    chain.num_seen[0] = num + 1
    return True


@hot
def _can_move(chain, relaxation):
    num = 0
    for task in range(len(chain.machines)):
        num += _find_available(chain, task, relaxation)
    return num > 0


@hot_loop
def walk(chain, model, scratch, num_steps, beta, gamma, relaxation):
    """Run the chain until a new feasible placement must be simulated.

    Placements more than `gamma` above the smallest cost, or whose makespan bound exceeds the best
    makespan, are skipped. `relaxation` is the relative capacity violation allowed during the
    search.

    Returns:
        True if a simulation is due, False at the end of the chain.
    """
    values = chain.values
    if chain.num_seen[0] == 0:
        _record(chain)
        return True
    while chain.step[0] < num_steps:
        num, tries = 0, 0
        task = np.int64(0)
        while num == 0:
            task = _below(chain.draws, len(chain.machines))
            num = _find_available(chain, task, relaxation)
            tries += 1
            if num == 0 and tries % _PATIENCE == 0 and not _can_move(chain, relaxation):
                chain.step[0] = num_steps
                return False
        chain.step[0] += 1
        machine = chain.avail[_below(chain.draws, num)]
        before = chain.machines[task]
        _move(chain, task, machine)
        penalty = 0.0
        for m in range(len(chain.violation)):
            penalty += chain.violation[m]
        cost = path_length_s(model, chain.machines, scratch) * (1.0 + penalty)
        if _uniform(chain.draws) <= np.exp(beta * (values[COST] - cost) / values[FIRST_COST]):
            values[COST] = cost
            if penalty == 0.0 and cost <= (1.0 + gamma) * values[MIN_COST]:
                values[MIN_COST] = min(values[MIN_COST], cost)
                if _record(chain):
                    # Tolerance, so that rounding does not exclude a placement.
                    least_s = least_makespan_s(model, chain.machines, scratch) * (1.0 - ROUNDING)
                    if least_s < values[BEST_S]:
                        return True
                    chain.num_hopeless[0] += 1
        else:
            _move(chain, task, before)
    return False
