"""Machines of a cluster file are found among Ray nodes, or one clear error says why not."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.job import Job, Role
from headrace.core.memory import MachineMemory, MemoryEstimate
from headrace.core.placement import Placement
from headrace.runtime.cluster.nodes import (
    check_resources,
    find_nodes,
    memory_warnings,
    ray_resources,
    reserving,
)


def node(number: int, **fields: Any) -> dict[str, Any]:
    known = {
        "NodeID": f"id{number}",
        "Alive": True,
        "NodeManagerAddress": f"10.0.0.{number}",
        "NodeManagerHostname": f"host{number}",
        "Resources": {"CPU": 4.0, "memory": 1e9},
        "Labels": {},
    }
    return known | fields


def cluster(*names: str, **labels: str) -> Cluster:
    machines = [{"name": name, "nic": "1Gbps", "labels": labels} for name in names]
    return Cluster.model_validate({"version": 1, "machines": machines})


def test_a_label_goes_before_a_host_name() -> None:
    known = [node(1, NodeManagerHostname="m0"), node(2, Labels={"host": "m0"})]
    (found,) = find_nodes(cluster("m0"), known)
    assert (found.machine, found.node_id, found.address) == ("m0", "id2", "10.0.0.2")
    (found,) = find_nodes(cluster("m0"), known[:1])
    assert found.node_id == "id1"


def test_an_address_will_do() -> None:
    (found,) = find_nodes(cluster("m0", address="10.0.0.7"), [node(6), node(7)])
    assert found.node_id == "id7"


def test_all_missing_machines_are_named_at_once() -> None:
    with pytest.raises(
        SpecError, match=r"needs m1, m2, .*its nodes: host1 at 10\.0\.0\.1: "
    ) as error:
        find_nodes(cluster("host1", "m1", "m2"), [node(1), node(2, Alive=False)])
    assert "discover" in error.value.remedy


def test_two_machines_are_not_one_node() -> None:
    known = [node(1, Labels={"host": "m0"}, NodeManagerHostname="m1")]
    with pytest.raises(SpecError, match="m0 and m1 are the same Ray node"):
        find_nodes(cluster("m0", "m1"), known)


def test_a_node_with_too_little_is_named() -> None:
    nodes = find_nodes(cluster("host1", "host2"), [node(1), node(2)])
    demands = {Role.TRAINER: {"cpu": 2}, Role.SAMPLER: {"cpu": 1}, Role.STORE: {"memory": 10}}
    job = Job(trainers=2, batch_size=4, demands=demands)
    check_resources(nodes, Placement(samplers=(0, 1), trainers=(0, 1)), job)
    with pytest.raises(SpecError, match=r"needs 6 CPU on host2, .* has 4"):
        check_resources(nodes, Placement(samplers=(1, 1), trainers=(1, 1)), job)


def test_names_are_those_of_ray() -> None:
    assert ray_resources({"cpu": 2, "gpu": 1, "memory": 5, "disk": 3, "tpu": 0}) == {
        "CPU": 2,
        "GPU": 1,
        "memory": 5,
        "disk": 3,
    }


def test_estimated_memory_is_warned_about_and_not_reserved() -> None:
    demands = {Role.TRAINER: {"memory": 2e6, "cpu": 1.0}, Role.SAMPLER: {"memory": 1e6}}
    job = Job(trainers=1, batch_size=4, demands=demands)
    machines = [{"name": "host1", "nic": "1Gbps", "resources": {"memory": 4e9, "cpu": 4}}]
    made = plan(Cluster.model_validate({"machines": machines}), job, method="colocate")
    nodes = find_nodes(made.cluster, [node(1)])
    assert reserving(made) == job
    assert memory_warnings(nodes, made) == []

    def estimated(num_bytes: float) -> MemoryEstimate:
        machine = MachineMemory(machine="host1", tasks={Role.STORE: 1}, needed_bytes=num_bytes)
        return MemoryEstimate(
            tasks=(), machines=(machine,), batch_size=4, shape=(1, 1), demands={Role.TRAINER: 2e6}
        )

    large, small = (made.model_copy(update={"memory": estimated(n)}) for n in (3e9, 1e9))
    assert reserving(large).demands == {Role.TRAINER: {"cpu": 1.0}, Role.SAMPLER: {"memory": 1e6}}
    assert memory_warnings(nodes, small) == []
    (line,) = memory_warnings(nodes, large)
    assert line == "warning: the tasks on host1 need about 3 GB of memory, it has 1 GB"
