"""Matches machines of the cluster file with Ray nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.core.job import Job, Role
from headrace.core.memory import MEMORY
from headrace.core.placement import Placement
from headrace.core.plan import Plan
from headrace.core.units import format_bytes

HOST_LABEL = "host"
"""Ray label with the machine's name; else its host name or address is matched."""

ADDRESS_LABEL = "address"
"""Label in the cluster file with the machine's address."""


@dataclass(frozen=True)
class Node:
    """The Ray node of a machine of the cluster file, with its Ray resources."""

    machine: str
    node_id: str
    address: str
    resources: Mapping[str, float]


def find_nodes(cluster: Cluster, known: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """Find the node of every machine in `ray.nodes()`; raises SpecError if one has none."""
    alive = _alive(known)
    found = [_match(machine, alive) for machine in cluster.hosts]
    missing = [
        machine.name for machine, node in zip(cluster.hosts, found, strict=True) if node is None
    ]
    if missing:
        there = ", ".join(sorted(_called(node) for node in alive)) or "none"
        raise SpecError(
            f"the plan needs {_some(missing)}, which the Ray cluster does not have; its nodes: "
            f"{there}",
            f"start Ray there with --labels={HOST_LABEL}=NAME, or write a new cluster file with "
            "`headrace cluster discover` and plan again",
        )
    nodes = nodes_there(cluster, known)
    owners: dict[str, str] = {}
    for node in nodes:
        if node.node_id in owners:
            raise SpecError(
                f"{owners[node.node_id]} and {node.machine} are the same Ray node at "
                f"{node.address}",
                f"start a separate Ray node for every machine, labelled {HOST_LABEL}=NAME",
            )
        owners[node.node_id] = node.machine
    return nodes


def nodes_there(cluster: Cluster, known: Sequence[Mapping[str, Any]]) -> tuple[Node, ...]:
    """Nodes of the available machines, in the order of the cluster."""
    alive = _alive(known)
    found = [(machine, _match(machine, alive)) for machine in cluster.hosts]
    return tuple(
        Node(
            machine.name,
            node["NodeID"],
            node["NodeManagerAddress"],
            dict(node.get("Resources", {})),
        )
        for machine, node in found
        if node is not None
    )


def ray_resources(demand: Mapping[str, float]) -> dict[str, float]:
    """Convert a demand to Ray resources."""
    names = {"cpu": "CPU", "gpu": "GPU"}
    return {names.get(name, name): amount for name, amount in demand.items() if amount > 0}


def reserving(plan: Plan) -> Job:
    """The plan's job, with the demands that its tasks reserve: without estimated memory."""
    return plan.job if plan.memory is None else plan.memory.without_estimates(plan.job)


def memory_warnings(nodes: Sequence[Node], plan: Plan) -> list[str]:
    """Sentences about nodes that have less memory than their tasks are estimated to need."""
    has = {node.machine: node.resources.get(MEMORY) for node in nodes}
    found = []
    for machine in () if plan.memory is None else plan.memory.machines:
        free = has.get(machine.machine)
        if free is not None and machine.needed_bytes > free:
            found.append(
                f"warning: the tasks on {machine.machine} need about "
                f"{format_bytes(machine.needed_bytes)} of memory, it has {format_bytes(free)}"
            )
    return found


def check_resources(nodes: Sequence[Node], placement: Placement, job: Job) -> None:
    """Raise SpecError if the total resources of a node do not suffice for its tasks."""
    roles = (
        (Role.STORE, range(len(nodes))),
        (Role.SAMPLER, placement.samplers),
        (Role.TRAINER, placement.trainers),
        (Role.SERVER, placement.servers),
    )
    needed: list[dict[str, float]] = [{} for _ in nodes]
    for role, machines in roles:
        for machine in machines:
            for name, amount in ray_resources(job.demand(role)).items():
                needed[machine][name] = needed[machine].get(name, 0.0) + amount
    for node, wanted in zip(nodes, needed, strict=True):
        for name, amount in wanted.items():
            there = node.resources.get(name, 0.0)
            if amount > there * (1 + 1e-9):
                raise SpecError(
                    f"the plan needs {amount:g} {name} on {node.machine}, its Ray node at "
                    f"{node.address} has {there:g}",
                    "start Ray there with more resources, or plan for the existing machines",
                )


def _alive(known: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [node for node in known if node.get("Alive", node.get("alive", False))]


def _match(machine: Machine, alive: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    def by_label(node: Mapping[str, Any]) -> bool:
        return bool(node.get("Labels", {}).get(HOST_LABEL) == machine.name)

    def by_name(node: Mapping[str, Any]) -> bool:
        return bool(node.get("NodeManagerHostname") == machine.name)

    def by_address(node: Mapping[str, Any]) -> bool:
        address = machine.labels.get(ADDRESS_LABEL)
        return address is not None and bool(node.get("NodeManagerAddress") == address)

    for matches in (by_label, by_name, by_address):
        for node in alive:
            if matches(node):
                return node
    return None


def _called(node: Mapping[str, Any]) -> str:
    name = node.get("Labels", {}).get(HOST_LABEL) or node.get("NodeManagerHostname")
    return f"{name} at {node.get('NodeManagerAddress')}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
