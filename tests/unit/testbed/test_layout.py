from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.testbed.layout import (
    HostLayout,
    Limits,
    Shape,
    check_name,
    free_subnet,
    hosts_file,
    lay_out,
)


def cluster(*names: str) -> Cluster:
    machines = [Machine(name=name, resources={"cpu": 4}, nic_in=1e9, nic_out=1e9) for name in names]
    return Cluster(machines=tuple(machines))


def layout(*names: str, name: str = "bed") -> HostLayout:
    return lay_out(cluster(*names), name, "boot", True, ())


def test_every_machine_has_its_own_names_and_address() -> None:
    made = layout("a", "b.c")
    x = made.subnet
    assert made.namespaces == ("hr.bed", "hr.bed.a", "hr.bed.b.c")
    assert [host.address for host in made.hosts] == [f"10.78.{x}.1", f"10.78.{x}.2"]
    assert [host.link for host in made.hosts] == ["v0", "v1"]
    assert made.ray_address == f"10.78.{x}.1:6379"
    assert len({host.folder for host in made.hosts}) == 2


def test_no_two_testbeds_share_a_name() -> None:
    # "a" with a machine "b" and "a-b" alone would collide, were the dot a hyphen.
    one, two = layout("b", name="a"), layout("b", name="a-b")
    assert not set(one.namespaces) & set(two.namespaces)
    assert one.folder != two.folder


def test_ray_sockets_fit_into_the_kernels_limit() -> None:
    names = [f"m{i}" for i in range(250)]
    last = layout(*names, name="n" * 20).hosts[-1]
    session = "ray/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store"
    assert len(str(last.folder / session)) <= 107


@pytest.mark.parametrize("name", ["", "A", "a.b", "a/b", "-a", "a-", "a" * 21, "..", "a b"])
def test_names_that_cannot_be_used(name: str) -> None:
    with pytest.raises(SpecError, match="is not a valid testbed name"):
        check_name(name)


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "m" * 64, "ü"])
def test_machines_that_cannot_be_hosts(name: str) -> None:
    with pytest.raises(SpecError, match="is not a valid host name"):
        layout(name)


def test_too_many_machines() -> None:
    with pytest.raises(SpecError, match="251 machines"):
        layout(*(f"m{i}" for i in range(251)))


def test_a_taken_subnet_is_left_alone() -> None:
    wanted = free_subnet("bed", ())
    assert free_subnet("bed", ()) == wanted
    assert free_subnet("bed", {wanted}) == (wanted + 1) % 256
    with pytest.raises(SpecError, match="free"):
        free_subnet("bed", range(256))


def test_it_knows_its_cluster() -> None:
    made = layout("a", "b")
    assert made.is_of(lay_out(cluster("a", "b"), "bed", "boot", True, ()))
    assert not made.is_of(lay_out(cluster("a", "b"), "bed", "boot", False, ()))
    assert not made.is_of(layout("a"))


def shaped(cores: float, *cpus: float) -> HostLayout:
    machines = [
        Machine(name=f"m{i}", resources={"cpu": cpu} if cpu else {}, nic_in=1e7, nic_out=2e7)
        for i, cpu in enumerate(cpus)
    ]
    shape = Shape(cores, Path("/groups"))
    return lay_out(Cluster(machines=tuple(machines)), "bed", "boot", True, (), shape)


def test_cores_are_shared_by_cpu() -> None:
    made = shaped(2.0, 8, 4, 4)
    assert made.is_shaped
    limits = [host.limits for host in made.hosts]
    assert [each and each.cores for each in limits] == [1.0, 0.5, 0.5]
    assert limits[0] == Limits(in_bytes_per_s=1e7, out_bytes_per_s=2e7, cores=1.0)
    assert made.hosts[1].cgroup == Path("/groups/hr.bed.m1")
    assert HostLayout.model_validate_json(made.model_dump_json()) == made


def test_limits_may_change_but_not_come_and_go() -> None:
    made = shaped(2.0, 8, 4)
    assert made.is_of(shaped(1.0, 8, 4))
    assert not made.is_of(shaped(2.0, 8, 8))
    assert not layout("a").is_of(shaped(1.0, 4))
    assert not layout("a").is_shaped


def test_every_machine_needs_its_share_of_the_cores() -> None:
    with pytest.raises(SpecError, match="m1 has no `cpu`"):
        shaped(2.0, 8, 0)
    with pytest.raises(SpecError, match="0 cores"):
        shaped(0.0, 8)


def test_it_survives_its_file() -> None:
    made = layout("a", "b")
    assert HostLayout.model_validate_json(made.model_dump_json()) == made


def test_an_unknown_machine_names_those_there_are() -> None:
    with pytest.raises(SpecError, match="a, b"):
        layout("a", "b").host("c")


def test_machines_know_each_other_by_name() -> None:
    made = layout("a", "b")
    assert f"10.78.{made.subnet}.2 b\n" in hosts_file(made)
