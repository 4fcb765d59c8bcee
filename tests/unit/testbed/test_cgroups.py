from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.errors import RunError, SpecError
from headrace.testbed import cgroups


@pytest.fixture
def v1(tmp_path: Path) -> Path:
    """Where the kernel of an older system keeps groups for CPU time."""
    top = tmp_path / "cpu"
    top.mkdir()
    return top


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """Where a newer system keeps all groups."""
    top = tmp_path / "unified"
    top.mkdir()
    (top / "cgroup.controllers").write_text("cpuset cpu io memory\n")
    (top / "cgroup.subtree_control").write_text("memory pids\n")
    return top


def mounts(folder: Path, *lines: str) -> Path:
    path = folder / "mountinfo"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def v1_line(top: Path, controllers: str) -> str:
    return f"35 31 0:29 / {top} rw,relatime shared:7 - cgroup cgroup rw,{controllers}"


def v2_line(top: Path) -> str:
    return f"30 23 0:26 / {top} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def test_the_controller_is_found_wherever_it_is(tmp_path: Path, v1: Path, v2: Path) -> None:
    root = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw"
    only_sets = v1_line(tmp_path / "cpuset", "cpuset")
    older = mounts(tmp_path, root, only_sets, v1_line(v1, "cpu,cpuacct"))
    assert cgroups.find_top(older) == v1
    assert cgroups.find_top(mounts(tmp_path, root, v2_line(v2))) == v2
    # Both are mounted, and the older one has the controller.
    (v2 / "cgroup.controllers").write_text("hugetlb\n")
    assert cgroups.find_top(mounts(tmp_path, v2_line(v2), v1_line(v1, "cpu"))) == v1
    with pytest.raises(SpecError, match="no control group with the controller `cpu`"):
        cgroups.find_top(mounts(tmp_path, root, v2_line(v2)))


def test_version_1(v1: Path) -> None:
    group = v1 / "hr.bed.m0"
    cgroups.make(group)
    cgroups.limit(group, 0.25)
    assert (group / "cpu.cfs_period_us").read_text() == "10000"
    assert (group / "cpu.cfs_quota_us").read_text() == "2500"


def test_version_2(v2: Path) -> None:
    group = v2 / "hr.bed.m0"
    cgroups.make(group)
    assert (v2 / "cgroup.subtree_control").read_text() == "+cpu"
    cgroups.limit(group, 1.5)
    assert (group / "cpu.max").read_text() == "15000 10000"


def test_version_2_with_the_controller_on(v2: Path) -> None:
    (v2 / "cgroup.subtree_control").write_text("cpu memory\n")
    cgroups.make(v2 / "hr.bed.m0")
    assert (v2 / "cgroup.subtree_control").read_text() == "cpu memory\n"


@pytest.mark.parametrize(("cores", "asked"), [(0.02, "1000 50000"), (0.0001, "1000 1000000")])
def test_small_shares_have_long_periods(v2: Path, cores: float, asked: str) -> None:
    group = v2 / "hr.bed.m0"
    cgroups.make(group)
    cgroups.limit(group, cores)
    assert (group / "cpu.max").read_text() == asked


def test_where_groups_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be created"):
        cgroups.make(tmp_path / "not there" / "hr.bed.m0")


def test_removing(v1: Path) -> None:
    group = v1 / "hr.bed.m0"
    cgroups.remove(group, 0.0)
    group.mkdir()
    cgroups.remove(group, 0.0)
    assert not group.exists()


def test_whoever_is_left_is_named(v1: Path) -> None:
    group = v1 / "hr.bed.m0"
    group.mkdir()
    (group / "cgroup.procs").write_text("12\n34\n")
    with pytest.raises(RunError, match="processes in it: 12, 34"):
        cgroups.remove(group, 0.0)
