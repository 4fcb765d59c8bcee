"""The task graph of a job: tasks and data flows of every iteration (DGTP, section III).

Task and edge ids do not depend on the placement, so that a random draw for an edge and iteration is
the same under every placement (common random numbers).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from headrace.core.job import Job, Role, Sync


class EdgeKind(IntEnum):
    """Payload of an edge; `ORDER` is a dependency without bytes."""

    GRAPH = 0
    BATCH = 1
    GRADIENT = 2
    PARAMETER = 3
    RING = 4
    ORDER = 5
    SWAP = 6


FIRST_COFLOW = 16
"""Kind of the first coflows of a graph of coflows; larger kinds are served later."""


ROLES = tuple(Role)
"""Roles by role code."""


@dataclass(frozen=True)
class TaskGraph:
    """Tasks and edges as flat arrays.

    Attributes:
        num_machines: Number of machines, which is the number of graph stores.
        num_samplers: Samplers of all trainers.
        num_trainers: Trainers.
        num_servers: Parameter servers.
        role: Role code per task (index into `ROLES`), in the order stores, samplers, trainers,
            servers, layers, ring.
        owner: Index of the task within its role; for a layer or a ring step, the trainer it runs
            in.
        src: Producing task per edge.
        dst: Consuming task per edge.
        lag: 1 if the data of iteration n is consumed in n + 1, else 0.
        kind: `EdgeKind` per edge.
        num_layers: Layers of a full-graph job: two per trainer and swap of rows.
    """

    num_machines: int
    num_samplers: int
    num_trainers: int
    num_servers: int
    role: np.ndarray
    owner: np.ndarray
    src: np.ndarray
    dst: np.ndarray
    lag: np.ndarray
    kind: np.ndarray
    num_layers: int = 0

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.role)

    @property
    def num_edges(self) -> int:
        """Number of edges."""
        return len(self.src)

    @property
    def first_sampler(self) -> int:
        """Task id of sampler 0."""
        return self.num_machines

    @property
    def first_trainer(self) -> int:
        """Task id of trainer 0."""
        return self.num_machines + self.num_samplers

    @property
    def first_server(self) -> int:
        """Task id of parameter server 0."""
        return self.first_trainer + self.num_trainers

    @property
    def first_layer(self) -> int:
        """Task id of the first layer; those of a swap follow each other, by trainer."""
        return self.first_server + self.num_servers

    @property
    def first_ring(self) -> int:
        """Task id of the ring's barrier, which precedes the ring steps."""
        return self.first_layer + self.num_layers

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names: `store3`, `sampler1.0`, `trainer2`, `ps0`, `layer2.1`, `ring2.5`, `barrier`."""
        per_trainer = max(1, self.num_samplers // self.num_trainers)
        names = [f"store{m}" for m in range(self.num_machines)]
        names += [f"sampler{s // per_trainer}.{s % per_trainer}" for s in range(self.num_samplers)]
        names += [f"trainer{w}" for w in range(self.num_trainers)]
        names += [f"ps{p}" for p in range(self.num_servers)]
        for layer in range(self.num_layers):
            names.append(f"layer{layer % self.num_trainers}.{layer // self.num_trainers}")
        if self.num_tasks > self.first_ring:
            names.append("barrier")
            for task in range(self.first_ring + 1, self.num_tasks):
                step = (task - self.first_ring - 1) // self.num_trainers
                names.append(f"ring{self.owner[task]}.{step}")
        return tuple(names)


def build_task_graph(
    job: Job, num_machines: int, ring_order: tuple[int, ...] | None = None
) -> TaskGraph:
    """Build the tasks and edges of a job.

    A ring of W trainers has 2(W-1) steps per trainer. Step k of a trainer sends its chunk to step
    k + 1 of the next trainer in the ring; the last step sends to that trainer's next iteration.
    Steps of one trainer run in order. The first waits for all trainers (a barrier task without
    time or bytes).

    A full-graph job's trainer computes until its first swap of rows. Each swap has two layers per
    trainer: what it computes while rows are on their way, and what it computes with them until the
    next swap. The last ones are followed by the ring or the parameter servers.

    Args:
        job: The job.
        num_machines: Number of machines, which is the number of graph stores.
        ring_order: Trainers in ring order; by index if not given.
    """
    num_trainers, num_samplers, num_servers = job.trainers, job.num_samplers, job.num_servers
    samplers = num_machines + np.arange(num_samplers)
    trainers = num_machines + num_samplers + np.arange(num_trainers)
    servers = num_machines + num_samplers + num_trainers + np.arange(num_servers)
    num_layers = 2 * len(job.swaps) * num_trainers
    layers = num_machines + num_samplers + num_trainers + num_servers + np.arange(num_layers)
    passes = layers.reshape(-1, 2, num_trainers)
    # What a trainer computes last.
    ends = passes[-1, 1] if num_layers else trainers
    edges: list[tuple[np.ndarray, np.ndarray, int, EdgeKind]] = [
        (
            np.tile(np.arange(num_machines), num_samplers),
            np.repeat(samplers, num_machines),
            0,
            EdgeKind.GRAPH,
        ),
        (samplers, np.repeat(trainers, job.samplers_per_trainer), 0, EdgeKind.BATCH),
    ]
    roles = [0] * num_machines + [1] * num_samplers + [2] * num_trainers + [3] * num_servers
    owners = [*range(num_machines), *range(num_samplers), *range(num_trainers), *range(num_servers)]
    roles += [ROLES.index(Role.LAYER)] * num_layers
    owners += list(range(num_trainers)) * (2 * len(job.swaps))
    if num_layers:
        edges += _swap_edges(trainers, passes)
    if num_servers:
        there = np.tile(servers, num_trainers)
        edges.append((np.repeat(ends, num_servers), there, 0, EdgeKind.GRADIENT))
        edges.append((there, np.repeat(trainers, num_servers), 1, EdgeKind.PARAMETER))
    if job.sync is Sync.RING and num_trainers > 1:
        order = np.array(ring_order if ring_order is not None else range(num_trainers))
        follower = np.empty(num_trainers, dtype=np.int64)
        follower[order] = np.roll(order, -1)
        barrier = num_machines + num_samplers + num_trainers + num_layers
        num_steps = 2 * (num_trainers - 1)
        steps = barrier + 1 + np.arange(num_steps * num_trainers).reshape(num_steps, num_trainers)
        here = np.full(num_trainers, barrier)
        edges += [(ends, here, 0, EdgeKind.ORDER), (here, steps[0], 0, EdgeKind.ORDER)]
        for k in range(num_steps - 1):
            edges.append((steps[k], steps[k + 1], 0, EdgeKind.ORDER))
            edges.append((steps[k], steps[k + 1][follower], 0, EdgeKind.RING))
        edges.append((steps[-1], trainers, 1, EdgeKind.ORDER))
        edges.append((steps[-1], trainers[follower], 1, EdgeKind.RING))
        roles += [4] * (1 + num_steps * num_trainers)
        owners += [int(order[0]), *(list(range(num_trainers)) * num_steps)]
    return TaskGraph(
        num_machines=num_machines,
        num_samplers=num_samplers,
        num_trainers=num_trainers,
        num_servers=num_servers,
        role=np.array(roles, dtype=np.int8),
        owner=np.array(owners, dtype=np.int32),
        src=np.concatenate([src for src, _, _, _ in edges]).astype(np.int32),
        dst=np.concatenate([dst for _, dst, _, _ in edges]).astype(np.int32),
        lag=np.concatenate([np.full(len(src), lag) for src, _, lag, _ in edges]).astype(np.int8),
        kind=np.concatenate([np.full(len(src), kind) for src, _, _, kind in edges]).astype(np.int8),
        num_layers=num_layers,
    )


def _swap_edges(
    trainers: np.ndarray, passes: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, int, EdgeKind]]:
    """Edges of the layers, shape (swap, 2, trainer); those of a swap by sender, then receiver."""
    sender, receiver = np.nonzero(~np.eye(len(trainers), dtype=bool))
    edges, before = [], trainers
    for during, after in passes:
        edges += [
            (before, during, 0, EdgeKind.ORDER),
            (during, after, 0, EdgeKind.ORDER),
            (before[sender], after[receiver], 0, EdgeKind.SWAP),
        ]
        before = after
    return [*edges, (before, trainers, 1, EdgeKind.ORDER)]
