"""Placement of tasks on machines."""

from __future__ import annotations

from typing import Literal

import numpy as np

from headrace.core.cluster import Cluster
from headrace.core.errors import InfeasibleError, SpecError
from headrace.core.job import Job, Role
from headrace.core.values import Spec


class Placement(Spec):
    """Machine index of every movable task; stores are fixed, one per machine.

    Sampler i of trainer w is entry `w * samplers_per_trainer + i`.
    """

    samplers: tuple[int, ...]
    trainers: tuple[int, ...]
    servers: tuple[int, ...] = ()

    @property
    def ring_order(self) -> tuple[int, ...]:
        """Trainers in ring order: sorted by machine, as launchers assign ranks."""
        return tuple(sorted(range(len(self.trainers)), key=lambda w: (self.trainers[w], w)))

    def numbered_by_ring(self) -> Placement:
        """Return the placement with trainers renumbered in `ring_order` (`trainer0` is rank 0)."""
        num = len(self.samplers) // max(len(self.trainers), 1)
        order = self.ring_order
        return Placement(
            samplers=tuple(self.samplers[w * num + i] for w in order for i in range(num)),
            trainers=tuple(self.trainers[w] for w in order),
            servers=self.servers,
        )

    def check(self, cluster: Cluster, job: Job) -> None:
        """Check that all tasks of the job are placed and fit the machines (eqs 1-5).

        Raises:
            SpecError: Wrong number of tasks, or an unknown machine.
            InfeasibleError: The tasks on a machine exceed its resources.
        """
        for what, machines, num in (
            ("samplers", self.samplers, job.num_samplers),
            ("trainers", self.trainers, job.trainers),
            ("servers", self.servers, job.num_servers),
        ):
            if len(machines) != num:
                raise SpecError(
                    f"the placement has {len(machines)} {what}, but the job has {num}",
                    f"list one machine for each of the {num} {what}" if num else f"remove {what}",
                    at=(what,),
                )
            if machines and not 0 <= min(machines) <= max(machines) < cluster.num_machines:
                raise SpecError(
                    f"the placement of {what} names machines outside 0..{cluster.num_machines - 1}",
                    "name machines of the cluster file",
                )
        names = resource_names(cluster, job)
        used, capacities = self.usage(cluster, job), cluster.capacities(names)
        excess = used - capacities
        if (excess > 1e-9 * np.maximum(capacities, 1)).any():
            m, r = np.unravel_index(
                int(np.argmax(excess / np.maximum(capacities, 1e-9))), excess.shape
            )
            raise InfeasibleError(
                f"the placement needs {used[m, r]:g} {names[r]} on {cluster.hosts[m].name}, "
                f"which has {capacities[m, r]:g}",
                "move a task to another machine or lower the job's demands",
            )

    def usage(self, cluster: Cluster, job: Job) -> np.ndarray:
        """Resources in use, shape (num_machines, num_resources), ordered by `resource_names`."""
        names = resource_names(cluster, job)
        used = np.zeros((cluster.num_machines, len(names)))
        used += demand_vector(job, Role.STORE, names)
        for role, machines in (
            (Role.SAMPLER, self.samplers),
            (Role.TRAINER, self.trainers),
            (Role.SERVER, self.servers),
        ):
            counts = np.bincount(np.array(machines, dtype=np.int64), minlength=cluster.num_machines)
            used += counts[:, None] * demand_vector(job, role, names)
        return used


class PlacementFile(Spec):
    """Placement file: machine names instead of indices."""

    version: Literal[1] = 1
    samplers: tuple[str, ...]
    trainers: tuple[str, ...]
    servers: tuple[str, ...] = ()

    @classmethod
    def of(cls, placement: Placement, cluster: Cluster) -> PlacementFile:
        """Convert machine indices to names."""
        names = [machine.name for machine in cluster.hosts]
        return cls(
            samplers=tuple(names[m] for m in placement.samplers),
            trainers=tuple(names[m] for m in placement.trainers),
            servers=tuple(names[m] for m in placement.servers),
        )

    def resolve(self, cluster: Cluster) -> Placement:
        """Convert machine names to indices; raises `SpecError` for unknown names."""
        index = {machine.name: m for m, machine in enumerate(cluster.hosts)}
        known = ", ".join(list(index)[:8]) + (", ..." if len(index) > 8 else "")
        for what in ("samplers", "trainers", "servers"):
            for i, name in enumerate(getattr(self, what)):
                if name not in index:
                    raise SpecError(
                        f"the placement names machine {name!r}, which the cluster does not have",
                        f"use one of {known}",
                        at=(what, i),
                    )
        return Placement(
            samplers=tuple(index[name] for name in self.samplers),
            trainers=tuple(index[name] for name in self.trainers),
            servers=tuple(index[name] for name in self.servers),
        )


def resource_names(cluster: Cluster, job: Job) -> tuple[str, ...]:
    """Sorted names of all resources that machines have or tasks demand."""
    wanted = {name for demand in job.demands.values() for name in demand}
    return tuple(sorted(wanted.union(cluster.resource_names)))


def demand_vector(job: Job, role: Role, names: tuple[str, ...]) -> np.ndarray:
    """Demand of one task of a role, ordered by `names`."""
    demand = job.demand(role)
    return np.array([demand.get(name, 0.0) for name in names], dtype=np.float64)
