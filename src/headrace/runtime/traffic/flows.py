"""Flows between the tasks of a plan."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from headrace.core.plan import Plan, problem_of
from headrace.core.tasks import EdgeKind, build_task_graph
from headrace.costs import edge_volumes, task_machines
from headrace.policies.flow import Flow

_KINDS = {
    ("store", "sampler"): EdgeKind.GRAPH,
    ("store", "trainer"): EdgeKind.GRAPH,
    ("sampler", "trainer"): EdgeKind.BATCH,
    ("trainer", "ps"): EdgeKind.GRADIENT,
    ("ps", "trainer"): EdgeKind.PARAMETER,
    ("trainer", "trainer"): EdgeKind.RING,
}
_UNKNOWN_BYTES = 1e6  # validation batches that trainers sample themselves


@dataclass(frozen=True)
class LiveFlow:
    """Traffic from one task to another, over all their connections.

    Machines and `task`, the receiver, are numbers; `volume_bytes` is the mean per iteration.
    """

    number: int
    src: str
    dst: str
    src_machine: int
    dst_machine: int
    task: int
    kind: EdgeKind
    volume_bytes: float

    def opened(self, sent_bytes: float, opened_s: float, iteration: int = 0) -> Flow:
        """Return the policy's view of this flow while it is open."""
        return Flow(
            src=self.src_machine,
            dst=self.dst_machine,
            task=self.task,
            edge=self.number,
            kind=int(self.kind),
            iteration=iteration,
            volume=self.volume_bytes,
            remaining=max(self.volume_bytes - sent_bytes, 1.0),
            opened=opened_s,
        )


class Flows:
    """All flows of a plan that may occur."""

    def __init__(self, plan: Plan) -> None:
        placed = plan.placed
        graph = build_task_graph(plan.job, plan.cluster.num_machines, placed.ring_order)
        machines = task_machines(graph, placed)
        self._tasks = {name: number for number, name in enumerate(graph.names)}
        self._machines = {name: int(machines[number]) for name, number in self._tasks.items()}
        self._volumes: dict[tuple[str, str], float] = defaultdict(float)
        trainers = np.arange(graph.num_tasks)
        trainers[graph.first_layer :] = graph.first_trainer + graph.owner[graph.first_layer :]
        volumes = edge_volumes(graph, problem_of(plan), plan.seeds)
        for src, dst, num_bytes in zip(graph.src, graph.dst, volumes, strict=True):
            # Layers and ring steps run in trainer processes.
            pair = graph.names[trainers[src]], graph.names[trainers[dst]]
            self._volumes[pair] += float(num_bytes)
        self._known: dict[tuple[str, str], LiveFlow] = {}
        self._numbered: list[LiveFlow] = []

    def __getitem__(self, number: int) -> LiveFlow:
        return self._numbered[number]

    def __len__(self) -> int:
        return len(self._numbered)

    def find(self, src: str, dst: str) -> LiveFlow | None:
        """Return the flow between two tasks; none if it is negligible or within one machine."""
        found = self._known.get((src, dst))
        if found is not None:
            return found
        kind = _KINDS.get((role_of(src), role_of(dst)))
        if kind is None or not {src, dst} <= self._tasks.keys():
            return None
        here, there = self._machines[src], self._machines[dst]
        if here == there:
            return None
        volume = self._volumes.get((src, dst), 0.0) or _UNKNOWN_BYTES
        made = LiveFlow(len(self), src, dst, here, there, self._tasks[dst], kind, volume)
        self._known[src, dst] = made
        self._numbered.append(made)
        return made


def role_of(task: str) -> str:
    """Role in a task's name: `sampler` for `sampler1.0`."""
    return task.rstrip("0123456789.")
