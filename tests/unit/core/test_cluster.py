from __future__ import annotations

import time

import numpy as np
import pytest
from pydantic import ValidationError

from headrace.core.cluster import Cluster, Machine


def cluster_of(*machines: dict[str, object]) -> Cluster:
    return Cluster.model_validate({"machines": machines})


def test_groups_become_single_machines() -> None:
    cluster = cluster_of(
        {"name": "big", "count": 3, "nic": "10Gbps", "kind": "v100", "resources": {"gpu": 4}},
        {"name": "small", "nic": "1Gbps"},
    )
    assert [host.name for host in cluster.hosts] == ["big-0", "big-1", "big-2", "small"]
    assert {host.count for host in cluster.hosts} == {1}
    assert [host.kind for host in cluster.hosts] == ["v100"] * 3 + ["default"]
    assert cluster.num_machines == 4


def test_one_nic_figure_means_both_directions() -> None:
    both, apart, mixed = cluster_of(
        {"name": "a", "nic": "8Gbps"},
        {"name": "b", "nic_in": "8Gbps", "nic_out": "16Gbps"},
        {"name": "c", "nic": "8Gbps", "nic_out": "16Gbps"},
    ).hosts
    assert (both.nic_in, both.nic_out) == (1e9, 1e9)
    assert (apart.nic_in, apart.nic_out) == (1e9, 2e9)
    assert (mixed.nic_in, mixed.nic_out) == (1e9, 2e9)


def test_arrays_follow_the_hosts() -> None:
    cluster = cluster_of(
        {"name": "a", "count": 2, "nic_in": "8Gbps", "nic_out": "16Gbps", "resources": {"cpu": 8}},
        {"name": "b", "nic": "24Gbps", "resources": {"gpu": 2, "memory": "1KB"}},
    )
    assert cluster.resource_names == ("cpu", "gpu", "memory")
    expected = [[8, 0, 0], [8, 0, 0], [0, 2, 1000]]
    np.testing.assert_array_equal(cluster.capacities(cluster.resource_names), expected)
    np.testing.assert_array_equal(cluster.nic_in_bytes_per_s(), [1e9, 1e9, 3e9])
    np.testing.assert_array_equal(cluster.nic_out_bytes_per_s(), [2e9, 2e9, 3e9])
    assert cluster.capacities(()).shape == (3, 0)


@pytest.mark.parametrize(
    "names",
    [[("a", 1), ("a", 1)], [("a", 2), ("a", 2)], [("a-1", 1), ("a", 2)], [("a", 2), ("a-0", 1)]],
)
def test_names_are_unique(names: list[tuple[str, int]]) -> None:
    with pytest.raises(ValidationError, match="two machines have the name"):
        cluster_of(*({"name": name, "count": n, "nic": "1Gbps"} for name, n in names))


def test_a_group_and_a_machine_of_its_bare_name_are_no_conflict() -> None:
    cluster_of({"name": "a", "count": 2, "nic": "1Gbps"}, {"name": "a", "nic": "1Gbps"})


def test_many_machines_are_checked_fast() -> None:
    machines = tuple(Machine(name=f"m{i}", nic_in=1e9, nic_out=1e9) for i in range(8192))
    # Of this thread alone, whatever else the machine does.
    start = time.thread_time()
    assert Cluster(machines=machines).num_machines == 8192
    assert time.thread_time() - start < 1.0


@pytest.mark.parametrize("fields", [{"count": 0}, {"count": 1.5}, {"name": ""}, {"nic": 0}])
def test_impossible_machines(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        cluster_of({"name": "a", "nic": "1Gbps"} | fields)
