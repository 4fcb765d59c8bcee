"""The Ray placement group of a plan: one bundle per task, pinned to its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.core.job import Role
from headrace.core.plan import Plan
from headrace.policies.lifecycle.events import Task
from headrace.runtime.cluster.nodes import Node, ray_resources, reserving

# A bundle must not be empty; every node has one unit of its `node:` resource.
_TOUCH = 0.001


@dataclass(frozen=True)
class TaskPlacement:
    """Node and resource bundle of a task; `index` counts the tasks of its role."""

    task: Task
    index: int
    node: Node
    bundle: Mapping[str, float]


def slots_of(
    plan: Plan, nodes: Sequence[Node], starts_stores: bool = True
) -> tuple[TaskPlacement, ...]:
    """Placements of all tasks of a plan, with `nodes` in the order of its cluster.

    Unless the run starts its stores, their task actors need no resources.
    """
    job, placed = reserving(plan), plan.placed
    per_trainer = job.samplers_per_trainer
    slots = list(store_slots(nodes, job.demand(Role.STORE) if starts_stores else {}))
    named = [
        (Role.SAMPLER, s, f"sampler{s // per_trainer}.{s % per_trainer}", m)
        for s, m in enumerate(placed.samplers)
    ]
    named += [(Role.TRAINER, w, f"trainer{w}", m) for w, m in enumerate(placed.trainers)]
    named += [(Role.SERVER, p, f"ps{p}", m) for p, m in enumerate(placed.servers)]
    slots += [_slot(role, i, name, nodes[m], job.demand(role)) for role, i, name, m in named]
    return tuple(slots)


def store_slots(nodes: Sequence[Node], demand: Mapping[str, float]) -> tuple[TaskPlacement, ...]:
    """Placements of stores: one per node."""
    return tuple(_slot(Role.STORE, m, f"store{m}", node, demand) for m, node in enumerate(nodes))


def _slot(
    role: Role, index: int, name: str, node: Node, demand: Mapping[str, float]
) -> TaskPlacement:
    bundle = ray_resources(demand) or {f"node:{node.address}": _TOUCH}
    return TaskPlacement(Task(name, role, node.machine), index, node, bundle)


class TaskPlacementGroup:
    """The placement group of a run; Ray removes it when the driver exits.

    Args:
        slots: Placement of every task.
        name: Name shown by Ray.
        ask: Executes a call that needs the head of the cluster.
    """

    def __init__(
        self,
        slots: Sequence[TaskPlacement],
        name: str,
        ask: Callable[[Callable[[], Any]], Any] = lambda call: call(),
    ) -> None:
        from ray.util.placement_group import placement_group

        self._slots, self._ask = slots, ask
        self._group = placement_group(
            [dict(slot.bundle) for slot in slots],
            strategy="PACK",
            name=name,
            bundle_label_selector=[{"ray.io/node-id": slot.node.node_id} for slot in slots],
        )

    @property
    def is_ready(self) -> bool:
        """Whether all bundles are reserved."""
        from ray.util.placement_group import placement_group_table

        table: dict[str, Any] = self._ask(partial(placement_group_table, self._group))
        return table.get("state") == "CREATED"

    def lacks(self) -> dict[str, str]:
        """Missing resources of pending tasks, by task name."""
        from ray._private.state import available_resources_per_node

        free: dict[str, dict[str, float]] = {}
        # Ray has no public API for this; without it the message is less precise.
        with suppress(Exception):
            free = self._ask(available_resources_per_node)
        lacks = {}
        needed: dict[tuple[str, str], float] = {}
        for slot in self._slots:
            for name, amount in slot.bundle.items():
                key = (slot.node.node_id, name)
                needed[key] = needed.get(key, 0.0) + amount
                there = free.get(slot.node.node_id, {}).get(name, 0.0 if free else amount)
                if needed[key] > there + 1e-6:
                    lacks[slot.task.name] = f"{amount:g} {name} ({there:g} available)"
        return lacks

    def start(self, number: int, actor: type, *arguments: Any) -> Any:
        """Start a task actor in its bundle; return its handle without waiting."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = dict(self._slots[number].bundle)
        options: dict[str, Any] = {
            "num_cpus": bundle.pop("CPU", 0),
            "num_gpus": bundle.pop("GPU", 0),
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, number),
        }
        if "memory" in bundle:
            options["memory"] = bundle.pop("memory")
        # No retries or restarts: calls to a dead actor must fail immediately.
        made: Any = ray.remote(actor).options(**options, resources=bundle)
        return self._ask(partial(made.remote, *arguments))

    def remove(self) -> None:
        """Release all resources."""
        from ray.util.placement_group import remove_placement_group

        with suppress(Exception):
            self._ask(partial(remove_placement_group, self._group))
