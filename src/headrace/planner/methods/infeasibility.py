"""Error messages for jobs that do not fit: the missing resource, the shortage and a remedy."""

from __future__ import annotations

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.errors import InfeasibleError
from headrace.core.job import Job, Role
from headrace.core.placement import demand_vector
from headrace.core.units import format_bytes
from headrace.planner.methods.bin_packing import Room, most_samplers, num_fitting, totals_of

_LEAST_SIZE = 1e6
"""Amounts from here on are formatted as bytes."""

_ROLE_NAMES = {
    Role.SAMPLER: "sampler",
    Role.TRAINER: "trainer",
    Role.SERVER: "parameter server",
}


def check_stores_fit(cluster: Cluster, job: Job) -> None:
    """Check that every machine has room for its graph store.

    Raises:
        InfeasibleError: A machine does not.
    """
    room = Room.of(cluster, job)
    short = room.free < 0
    if short.any():
        m, r = (int(i) for i in np.argwhere(short)[0])
        name, machine = room.names[r], cluster.hosts[m]
        needs = job.demand(Role.STORE)[name]
        has = machine.resources.get(name, 0.0)
        raise InfeasibleError(
            f"the store on {machine.name} needs {_amount(needs, name)}, the machine has "
            f"{_amount(has, name)}, {_amount(needs - has, name)} short",
            f"lower demands.store.{name} or remove {machine.name} from the cluster",
        )


def explain(cluster: Cluster, job: Job) -> InfeasibleError:
    """Build the error for a job without a feasible placement; simple causes are checked first."""
    room = Room.of(cluster, job)
    # Messages use amounts without the rounding tolerance of packing.
    free = cluster.capacities(room.names) - demand_vector(job, Role.STORE, room.names)
    return (
        _task_too_large(room, job, free.max(axis=0))
        or _total_too_small(room, job, free.sum(axis=0))
        or _pieces_too_small(room, job, free.sum(axis=0))
    )


def _task_too_large(room: Room, job: Job, largest: np.ndarray) -> InfeasibleError | None:
    for role, num in _numbers(job):
        demand = demand_vector(job, role, room.names)
        if num == 0 or (num_fitting(room.free, demand) >= 1).any():
            continue
        alone = np.flatnonzero(demand > room.free.max(axis=0))
        if len(alone) == 0:
            wants = ", ".join(
                _amount(amount, name)
                for amount, name in zip(demand, room.names, strict=True)
                if amount > 0
            )
            return InfeasibleError(
                f"a {_ROLE_NAMES[role]} needs {wants} on one machine, and no machine has them all",
                f"lower demands.{role.value}, or add a machine that has all of them",
            )
        r = int(alone[0])
        name = room.names[r]
        return InfeasibleError(
            f"a {_ROLE_NAMES[role]} needs {_amount(demand[r], name)}, no machine has more than "
            f"{_amount(largest[r], name)} beside its store, "
            f"{_amount(demand[r] - largest[r], name)} short",
            f"lower demands.{role.value}.{name} to {_written(largest[r])} or add a larger machine",
        )
    return None


def _total_too_small(room: Room, job: Job, has: np.ndarray) -> InfeasibleError | None:
    needs = _needs(room, job)
    if (needs <= room.free.sum(axis=0)).all():
        return None
    short = needs - has
    r = int(np.argmax(short / np.maximum(has, 1e-9)))
    name = room.names[r]
    return InfeasibleError(
        f"the job needs {_amount(needs[r], name)}, the cluster has {_amount(has[r], name)} beside "
        f"its stores, {_amount(short[r], name)} short",
        _fewer_trainers(room, job),
    )


def _pieces_too_small(room: Room, job: Job, has: np.ndarray) -> InfeasibleError:
    table, totals = most_samplers(room, totals_of(job)), totals_of(job)
    if table[-1, -1] >= 0:
        role, of, fitting = Role.SAMPLER, totals.samplers, int(table[-1, -1])
    elif table[0, -1] >= 0:
        role, of, fitting = Role.TRAINER, totals.trainers, _last(table[:, -1] >= 0)
    else:
        role, of, fitting = Role.SERVER, totals.servers, _last(table[0] >= 0)
    needs, demand = _needs(room, job), demand_vector(job, role, room.names)
    # Report the resource with the highest utilisation that the task demands.
    r = int(np.argmax(np.where(demand > 0, needs / np.maximum(has, 1e-9), -1.0)))
    name = room.names[r]
    return InfeasibleError(
        f"{fitting} of {of} {_ROLE_NAMES[role]}s fit beside the other tasks, {of - fitting} too "
        f"many; the job needs {_amount(needs[r], name)} of the cluster's {_amount(has[r], name)}, "
        f"but no machine has another {_amount(demand[r], name)} left",
        _fewer_trainers(room, job),
    )


def _fewer_trainers(room: Room, job: Job) -> str:
    """Remedy with the largest number of trainers that fits."""
    table = most_samplers(room, totals_of(job))[:, -1]
    most = _last(table >= np.arange(len(table)) * job.samplers_per_trainer)
    if most == 0:
        return "add machines, or lower the demands of the job: not even one trainer fits"
    return f"lower trainers from {job.trainers} to {most}, or add a machine"


def _last(holds: np.ndarray) -> int:
    """Largest index that is true; 0 if there is none."""
    return int(np.flatnonzero(holds).max(initial=0))


def _needs(room: Room, job: Job) -> np.ndarray:
    needs = np.zeros(len(room.names))
    for role, num in _numbers(job):
        needs += num * demand_vector(job, role, room.names)
    return needs


def _numbers(job: Job) -> tuple[tuple[Role, int], ...]:
    totals = totals_of(job)
    return (
        (Role.TRAINER, totals.trainers),
        (Role.SAMPLER, totals.samplers),
        (Role.SERVER, totals.servers),
    )


def _amount(amount: float, name: str) -> str:
    return f"{format_bytes(amount)} {name}" if amount >= _LEAST_SIZE else f"{amount:.6g} {name}"


def _written(amount: float) -> str:
    """Format an amount for a job file, rounded down."""
    return f"{amount // 1e6:.0f}MB" if amount >= _LEAST_SIZE else f"{amount:.6g}"
