"""Simulated annealing on port loads: moves, swaps and short ejection chains in constant time.

The energy is the 16-norm of all port loads relative to a scale. It is close to the largest load but
also rewards relieving the second-busiest port. Tasks are numbered samplers, trainers, servers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from headrace.planner.cost.nic_loads import LoadModel, load_in, load_out
from headrace.policies.compiled import hot, hot_loop

SAMPLER, TRAINER, SERVER = 0, 1, 2


class Search(NamedTuple):
    """State of one search; see `start_search`."""

    machine: Any
    """Machine per task."""
    counts: Any
    """Tasks per machine and role, shape (M, 3)."""
    arriving: Any
    leaving: Any
    free: Any
    """Free resources, shape (M, R)."""
    members: Any
    """Tasks per machine, unordered, shape (M, most tasks)."""
    position: Any
    """Index of each task in its machine's members."""
    size: Any
    energy: Any
    """Sum of the 16th powers of the relative in and out loads per machine."""
    touched: Any
    is_touched: Any
    sizes: Any
    """Number of touched machines."""
    best: Any
    """Best machine per task so far."""
    random: Any
    """State of the random generator."""


def start_search(model: LoadModel, machines: np.ndarray, seed: int) -> Search:
    """Build the search state of a placement, given as machine per task."""
    num, num_tasks = model.num_machines, len(machines)
    per_role = (
        model.num_trainers * model.per_trainer,
        model.num_trainers,
        model.num_servers,
    )
    role = np.repeat(np.arange(3), per_role)
    counts = np.zeros((num, 3), dtype=np.int64)
    np.add.at(counts, (machines, role), 1)
    home = np.repeat(machines[per_role[0] : per_role[0] + per_role[1]], model.per_trainer)
    apart = machines[: per_role[0]] != home
    size = np.bincount(machines, minlength=num)
    members = np.zeros((num, num_tasks), dtype=np.int32)
    position = np.zeros(num_tasks, dtype=np.int32)
    order = np.argsort(machines, kind="stable")
    starts = np.concatenate([[0], np.cumsum(size)])
    position[order] = np.arange(num_tasks) - starts[machines[order]]
    members[machines, position] = np.arange(num_tasks)
    return Search(
        machine=machines.astype(np.int32),
        counts=counts,
        arriving=np.bincount(home[apart], minlength=num).astype(np.int64),
        leaving=np.bincount(machines[: per_role[0]][apart], minlength=num).astype(np.int64),
        free=model.capacity - counts @ model.demand,
        members=members,
        position=position,
        size=size.astype(np.int64),
        energy=np.zeros(num),
        touched=np.zeros(num, dtype=np.int32),
        is_touched=np.zeros(num, dtype=np.bool_),
        sizes=np.zeros(1, dtype=np.int64),
        best=machines.astype(np.int32),
        random=np.array([np.uint64(seed) * np.uint64(2) + np.uint64(1)], dtype=np.uint64),
    )


@hot
def _next(random):
    """SplitMix64."""
    random[0] += np.uint64(0x9E3779B97F4A7C15)
    x = random[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@hot
def _below(random, limit):
    return np.int64((_next(random) >> np.uint64(32)) * np.uint64(limit) >> np.uint64(32))


@hot
def _unit(random):
    return np.float64(_next(random) >> np.uint64(11)) * 2.0**-53


@hot
def _role(model, task):
    num_samplers = model.num_trainers * model.per_trainer
    if task < num_samplers:
        return SAMPLER
    return TRAINER if task < num_samplers + model.num_trainers else SERVER


@hot
def _touch(search, m):
    if not search.is_touched[m]:
        search.is_touched[m] = True
        search.touched[search.sizes[0]] = m
        search.sizes[0] += 1


@hot
def machine_energy(model, search, m, scale):
    """Sum of the 16th powers of a machine's relative in and out loads."""
    samplers, trainers, servers = search.counts[m, 0], search.counts[m, 1], search.counts[m, 2]
    x = load_in(model, m, samplers, trainers, servers, search.arriving[m]) * scale
    y = load_out(model, m, samplers, trainers, servers, search.leaving[m]) * scale
    x, y = x * x, y * y
    x, y = x * x, y * y
    x, y = x * x, y * y
    return x * x + y * y


@hot
def _fits(model, search, role, m, gone):
    """Whether a task fits machine m after a task of role `gone` (-1 for none) has left it."""
    for r in range(model.demand.shape[1]):
        room = search.free[m, r]
        if gone >= 0:
            room += model.demand[gone, r]
        need = model.demand[role, r]
        if need > room + 1e-9 * need:
            return False
    return (
        search.counts[m, SAMPLER] + 1 < model.graph_in.shape[1]
        or role != SAMPLER
        or (gone == SAMPLER)
    )


@hot
def _shift_batches(search, machine, home, by):
    """Add or remove a sampler on `machine` with its trainer on `home`."""
    if machine != home:
        search.leaving[machine] += by
        search.arriving[home] += by
    _touch(search, machine)
    _touch(search, home)


@hot
def _relocate(model, search, task, target):
    """Move a task and update all counters."""
    role = _role(model, task)
    source = search.machine[task]
    num_samplers = model.num_trainers * model.per_trainer
    first, last = task, task
    if role == SAMPLER:
        last = task + 1
    elif role == TRAINER:
        first = (task - num_samplers) * model.per_trainer
        last = first + model.per_trainer
    for sampler in range(first, last):
        home = np.int64(search.machine[num_samplers + sampler // model.per_trainer])
        at = np.int64(search.machine[sampler])
        _shift_batches(search, at, home, -1)
        if role == SAMPLER:
            at = target
        else:
            home = target
        _shift_batches(search, at, home, 1)
    _touch(search, source)
    _touch(search, target)
    search.counts[source, role] -= 1
    search.counts[target, role] += 1
    for r in range(model.demand.shape[1]):
        search.free[source, r] += model.demand[role, r]
        search.free[target, r] -= model.demand[role, r]
    last = search.members[source, search.size[source] - 1]
    search.members[source, search.position[task]] = last
    search.position[last] = search.position[task]
    search.size[source] -= 1
    search.members[target, search.size[target]] = task
    search.position[task] = search.size[target]
    search.size[target] += 1
    search.machine[task] = target


@hot
def _pick(model, search):
    """Random task and target machine: any, or that of a task it exchanges batches with."""
    num_samplers = model.num_trainers * model.per_trainer
    task = _below(search.random, len(search.machine))
    target = np.int64(-1)
    if _unit(search.random) < 0.5:
        if task < num_samplers:
            target = np.int64(search.machine[num_samplers + task // model.per_trainer])
        elif task < num_samplers + model.num_trainers:
            sampler = (task - num_samplers) * model.per_trainer + _below(
                search.random, model.per_trainer
            )
            target = np.int64(search.machine[sampler])
    if target < 0 or target == search.machine[task]:
        target = _below(search.random, model.num_machines)
    return task, target


@hot_loop
def anneal(model, search, steps, scale, hot_temperature, cold_temperature):
    """Anneal a feasible placement with geometric cooling; the best one is in `search.best`.

    `scale` is the inverse of the reference load; temperatures are in units of the norm.

    Returns:
        Smallest 16-norm found, relative to the scale.
    """
    num = model.num_machines
    total = 0.0
    for m in range(num):
        search.energy[m] = machine_energy(model, search, m, scale)
        total += search.energy[m]
    norm = total ** (1.0 / 16.0)
    best = norm
    cooling = (cold_temperature / hot_temperature) ** (1.0 / max(1, steps))
    temperature = hot_temperature
    for step in range(steps):
        temperature *= cooling
        if step % 4096 == 4095:
            # Recompute the sum to remove accumulated rounding errors.
            total = 0.0
            for m in range(num):
                total += search.energy[m]
            norm = total ** (1.0 / 16.0)
        task, target = _pick(model, search)
        source = np.int64(search.machine[task])
        if target == source:
            continue
        role = _role(model, task)
        other = np.int64(-1)
        refuge = np.int64(-1)
        if not _fits(model, search, role, target, -1):
            if search.size[target] == 0:
                continue
            # No room: move another task to the source machine or to a random one.
            other = np.int64(search.members[target, _below(search.random, search.size[target])])
            other_role = _role(model, other)
            if not _fits(model, search, role, target, other_role):
                continue
            refuge = source
            if _unit(search.random) < 0.5:
                refuge = _below(search.random, num)
            if refuge == target:
                continue
            gone = role if refuge == source else -1
            if not _fits(model, search, other_role, refuge, gone):
                continue
        # One call site: the function is inlined at each.
        for is_task in range(0 if other >= 0 else 1, 2):
            _relocate(model, search, task if is_task else other, target if is_task else refuge)
        after = total
        for i in range(search.sizes[0]):
            m = search.touched[i]
            after += machine_energy(model, search, m, scale) - search.energy[m]
        new_norm = max(after, 0.0) ** (1.0 / 16.0)
        worse = new_norm - norm
        if worse <= 0.0 or _unit(search.random) < np.exp(-worse / temperature):
            for i in range(search.sizes[0]):
                m = search.touched[i]
                search.energy[m] = machine_energy(model, search, m, scale)
            total = after
            norm = new_norm
            if norm < best * (1.0 - 1e-9):
                best = norm
                for j in range(len(search.machine)):
                    search.best[j] = search.machine[j]
        else:
            for is_other in range(2 if other >= 0 else 1):
                _relocate(
                    model, search, other if is_other else task, target if is_other else source
                )
        for i in range(search.sizes[0]):
            search.is_touched[search.touched[i]] = False
        search.sizes[0] = 0
    return best
