"""Dry run: which tasks a plan would start, and where."""

from __future__ import annotations

from typing import Any

from headrace.core.errors import SpecError
from headrace.runtime.cluster.nodes import (
    check_resources,
    find_nodes,
    memory_warnings,
    reserving,
)
from headrace.runtime.cluster.placement_group import slots_of
from headrace.runtime.controller.graph_shipping import WantedFiles, wanted_files
from headrace.runtime.controller.run import check, connected, script_of
from headrace.runtime.run_dir.run_config import RunConfig
from headrace.runtime.workers.graph_cache import GraphCache

_LOCATE_TIMEOUT_S = 60.0


def describe(config: RunConfig) -> dict[str, Any]:
    """Describe where each task would run, and which graph files would be shipped.

    Returns:
        `tasks`, `machines` and `notes`, as plain values.

    Raises:
        SpecError: An input is invalid, or a machine is not available.
        MissingExtraError: Ray is not installed.
    """
    graph = check(config)
    assert graph is not None
    left_out: list[str] = []
    code = script_of(config, left_out.append).code or b""
    plan = config.plan
    with connected(config) as system:
        nodes = find_nodes(plan.cluster, system.nodes())
        check_resources(nodes, plan.placed, reserving(plan))
        slots = slots_of(plan, nodes)
        files = wanted_files(graph, plan.part_machines, plan.cluster.num_machines)
        found = _locate(config, [node.node_id for node in nodes], files)
    machines = []
    for node, want, there in zip(nodes, files, found, strict=True):
        missing_bytes = sum(want.sizes[name] for name in there["missing"])
        where = there["folder"]
        use = (
            f"uses {where}"
            if not missing_bytes
            else f"{missing_bytes / 1e6:.1f} MB to ship to {where}"
        )
        machines.append(
            {
                "name": node.machine,
                "address": node.address,
                "folder": where,
                "missing_bytes": missing_bytes,
                "graph": use,
            }
        )
    first = plan.placed.ring_order[0]
    rendezvous = nodes[plan.placed.trainers[first]]
    notes = [
        f"start order: stores, samplers, {'parameter servers, ' * bool(plan.job.num_servers)}"
        f"then {plan.job.trainers} trainers: {config.script} "
        f"{' '.join(config.arguments)}".rstrip(),
        f"trainers rendezvous at {rendezvous.address}; free ports are chosen at the start",
        f"connections between machines are {'encrypted' if config.tls else 'not encrypted'}",
        f"{len(code) / 1e6:.1f} MB of code are sent to the trainers",
        *left_out,
        *memory_warnings(nodes, plan),
    ]
    tasks = [
        {
            "name": slot.task.name,
            "role": slot.task.role.value,
            "machine": slot.task.machine,
            "address": slot.node.address,
            "needs": {
                name: amount
                for name, amount in slot.bundle.items()
                if not name.startswith("node:")  # placeholder: a bundle must not be empty
            },
        }
        for slot in slots
    ]
    return {"tasks": tasks, "machines": machines, "notes": notes}


def _locate(
    config: RunConfig, node_ids: list[str], files: list[WantedFiles]
) -> list[dict[str, Any]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    locate = ray.remote(_locate_here)
    refs = [
        locate.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote(
            None if config.cache is None else config.cache.replace("{machine}", machine.name),
            str(want.folder),
            want.fingerprint,
            want.sizes,
        )
        for node_id, want, machine in zip(node_ids, files, config.plan.cluster.hosts, strict=True)
    ]
    try:
        found: list[dict[str, Any]] = ray.get(refs, timeout=_LOCATE_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        raise SpecError(
            f"the graph cannot be located on every machine: {str(error).splitlines()[-1]}",
            "check that all machines are up and that headrace is installed on each",
        ) from None
    return found


def _locate_here(
    cache: str | None, given: str, fingerprint: str, files: dict[str, int]
) -> dict[str, Any]:
    return GraphCache(cache).locate(given, fingerprint, files)
