"""Machines of a shaped testbed have the network cards and the CPU time of the cluster file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from headrace.core.cluster import Cluster, Machine
from headrace.core.errors import SpecError
from headrace.testbed import Testbed, processes, take_down
from tests.e2e.goodput import measure
from tests.e2e.test_testbed import left_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.e2e]

MBIT = 1e6 / 8
BUSY = """
import time
end_s, begin_s = time.monotonic() + 2.0, time.process_time()
while time.monotonic() < end_s:
    pass
print((time.process_time() - begin_s) / 2.0)
"""


def machine(name: str, nic_in: float, nic_out: float, cpu: int) -> Machine:
    return Machine(name=name, resources={"cpu": cpu}, nic_in=nic_in * MBIT, nic_out=nic_out * MBIT)


@pytest.fixture
def bed(name: str) -> Iterator[Testbed]:
    fast, slow = machine("fast", 400, 400, 12), machine("slow", 80, 40, 4)
    yield Testbed.up(Cluster(machines=(fast, slow)), name, with_ray=False, shaped=True, cores=1.0)
    take_down(name)
    assert left_of(name) == {}


def assert_rate(bed: Testbed, senders: list[str], receiver: str, bytes_per_s: float) -> None:
    """No measurement exceeds the limit; one reaches it, when the machine has time for it."""

    def reaches() -> bool:
        found = sum(measure(bed, senders, receiver))
        assert found <= 1.05 * bytes_per_s
        return found >= 0.95 * bytes_per_s

    assert eventually(reaches)


def test_network_cards_and_cpus_are_those_of_the_file(bed: Testbed) -> None:
    # What the slow machine receives is limited at the switch, what it sends at its own end.
    assert_rate(bed, ["fast"], "slow", 80 * MBIT)
    assert_rate(bed, ["slow"], "fast", 40 * MBIT)
    assert_rate(bed, ["fast", "fast", "fast"], "slow", 80 * MBIT)

    bed = bed.set_nic("slow", 40 * MBIT, 20 * MBIT)
    assert_rate(bed, ["fast"], "slow", 40 * MBIT)
    limits = Testbed.find(bed.layout.name).hosts[1].limits
    assert limits is not None
    assert (limits.in_bytes_per_s, limits.out_bytes_per_s) == (40 * MBIT, 20 * MBIT)

    # A quarter of a core; less if the machine under it has much else to do.
    command = bed.command("slow", [sys.executable, "-c", BUSY])
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0.02 < float(done.stdout) < 0.25 * 1.15


def test_limits_change_but_do_not_come_and_go(bed: Testbed) -> None:
    name, hosts = bed.layout.name, bed.hosts
    faster = Cluster(
        machines=(machine("fast", 800, 800, 12), machine("slow", 80, 40, 4)),
    )
    again = Testbed.up(faster, name, with_ray=False, shaped=True, cores=0.5)
    assert again.was_up
    limits = [host.limits for host in again.hosts]
    assert [each and each.cores for each in limits] == [0.375, 0.125]
    assert limits[0] is not None
    assert limits[0].out_bytes_per_s == 800 * MBIT
    assert [host.init for host in again.hosts] == [host.init for host in hosts]
    with pytest.raises(SpecError, match="is up with limits"):
        Testbed.up(faster, name, with_ray=False)
    # What is left of a machine that was killed goes too, which the fixture sees.
    victim = hosts[1].init
    assert victim is not None
    assert processes.end([victim], 60.0) == []
    assert Testbed.find(name).problems() == ["machine slow has exited"]
