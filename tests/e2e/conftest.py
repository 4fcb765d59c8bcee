"""A testbed for all end-to-end tests of a process; it goes when they end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from headrace.core.cluster import Cluster
from headrace.testbed import Testbed, state_file, take_down

# Ray gives its workers a niceness of 15. Other tests would then leave runs nothing of two cores.
os.environ.update({"RAY_worker_niceness": "0"})  # Ray spells it so

MACHINES = ("m0", "m1", "m2", "m3")
NAME = f"test-{os.getpid()}"


@pytest.fixture(scope="session")
def _can_emulate() -> None:
    if os.geteuid() == 0 and shutil.which("ip") is not None:
        return
    reason = "a testbed needs root and iproute2"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four machines with 8 CPUs, as `headrace` commands want them."""
    resources = {"cpu": 8, "memory": "8GB"}
    machines = [{"name": name, "resources": resources, "nic": "10Gbps"} for name in MACHINES]
    path = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    path.write_text(yaml.safe_dump({"version": 1, "machines": machines}))
    return path


@pytest.fixture(scope="session")
def cluster(cluster_file: Path) -> Cluster:
    """The same four machines, as a value."""
    from headrace.api.documents.load import load_cluster

    return load_cluster(cluster_file)


@pytest.fixture(scope="session")
def testbed(_can_emulate: None, cluster: Cluster) -> Iterator[Testbed]:
    """Four machines m0 .. m3 with a Ray node each."""
    _remove_forgotten()
    bed = Testbed.up(cluster, NAME)
    try:
        yield bed
    finally:
        bed.down()


@pytest.fixture
def name(_can_emulate: None) -> Iterator[str]:
    """Of a testbed that a test makes itself; removed after the test."""
    _remove_forgotten()
    name = f"{NAME}-own"
    try:
        yield name
    finally:
        take_down(name)


def _remove_forgotten() -> None:
    """Remove testbeds of test processes that were killed."""
    for name in state_file.names():
        prefix, _, rest = name.partition("-")
        number = rest.partition("-")[0]
        if prefix == "test" and number.isdigit() and not Path(f"/proc/{number}").exists():
            take_down(name)
