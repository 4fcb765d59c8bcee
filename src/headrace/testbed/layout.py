"""Layout of a testbed: names, addresses and limits, computed before anything is created."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.core.values import Value

DEFAULT_NAME = "headrace"
FOLDER = Path("/run/headrace")
"""Directory of all testbeds. Like namespaces it does not survive a reboot. It is short because the
kernel limits socket paths to 107 characters, and Ray appends 64."""

RAY_PORT = 6379

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
# Valid as a value of a Ray label; also as a host name and a file name.
_MACHINE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NUM_SUBNETS = 256
_MAX_MACHINES = 250


class Process(Value):
    """A process, identified by process ID and start time, since process IDs are reused.

    Attributes:
        pid: Process ID outside of all namespaces.
        start_ticks: Start time, in the kernel's ticks since boot.
    """

    pid: int
    start_ticks: int


class Limits(Value):
    """Limits of an emulated machine.

    Attributes:
        in_bytes_per_s: Receive rate of its NIC.
        out_bytes_per_s: Send rate of its NIC.
        cores: CPU time of all its processes, in cores of this machine.
    """

    in_bytes_per_s: float
    out_bytes_per_s: float
    cores: float


class Host(Value):
    """One emulated machine.

    Attributes:
        name: As in the cluster file; also its host name and the label `host` of its Ray node.
        namespace: Its network namespace.
        link: The switch's end of its veth pair; its own end is `eth0`.
        address: Its IPv4 address.
        folder: Directory of its temporary files, log and Ray node.
        resources: As in the cluster file.
        limits: Limits of its NIC and CPU time, if any.
        cgroup: Control group of all its processes, if there are limits.
        holder: Parent of `init`, outside of the PID namespace.
        init: First process of the namespaces; all others end with it.
    """

    name: str
    namespace: str
    link: str
    address: str
    folder: Path
    resources: Mapping[str, float]
    limits: Limits | None = None
    cgroup: Path | None = None
    holder: Process | None = None
    init: Process | None = None


class Shape(NamedTuple):
    """Limits of a testbed: cores to distribute, and the directory of control groups."""

    cores: float
    cgroups: Path


class HostLayout(Value):
    """A testbed, as stored in its state file.

    Attributes:
        version: Version of the file format.
        name: Name of the testbed.
        state: `starting` until it is complete, also after a crash.
        boot_id: Boot ID of the machine when its processes started.
        subnet: The x of 10.78.x.0/24.
        switch: Network namespace of the bridge.
        with_ray: Whether each machine has a Ray node.
        hosts: The machines, in the order of the cluster file; the first has Ray's head node.
    """

    version: Literal[1] = 1
    name: str
    state: Literal["starting", "up"] = "starting"
    boot_id: str
    subnet: int
    switch: str
    with_ray: bool
    hosts: tuple[Host, ...]

    @property
    def folder(self) -> Path:
        """Directory of all files of the testbed."""
        return FOLDER / self.name

    @property
    def ray_address(self) -> str | None:
        """Address of Ray's head node."""
        return f"{self.hosts[0].address}:{RAY_PORT}" if self.with_ray else None

    @property
    def ray_token(self) -> Path:
        """File of Ray's authentication token."""
        return self.folder / "ray-token"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Names of all network namespaces."""
        return (self.switch, *(host.namespace for host in self.hosts))

    def host(self, name: str) -> Host:
        """The machine of that name; raises `SpecError` if there is none."""
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.hosts)
        raise SpecError(f"testbed {self.name!r} has no machine {name!r}", f"choose one of {known}")

    @property
    def is_shaped(self) -> bool:
        """Whether its machines have limits."""
        return self.hosts[0].limits is not None

    def is_of(self, other: HostLayout) -> bool:
        """Whether both have the same machines, and both or neither have limits."""
        return self._kind == other._kind

    @property
    def _kind(self) -> object:
        hosts = [(host.name, dict(host.resources)) for host in self.hosts]
        return hosts, self.with_ray, self.is_shaped


def check_name(name: str) -> None:
    """Raise `SpecError` if a testbed's name is too long or has invalid characters."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} is not a valid testbed name",
            "use up to 20 small letters, digits and hyphens",
        )


def lay_out(
    cluster: Cluster,
    name: str,
    boot_id: str,
    with_ray: bool,
    taken_subnets: Collection[int],
    shape: Shape | None = None,
) -> HostLayout:
    """Choose all names and addresses, and limits if `shape` is given."""
    check_name(name)
    if cluster.num_machines > _MAX_MACHINES:
        raise SpecError(
            f"{cluster.num_machines} machines do not fit into a testbed",
            f"use a cluster file with at most {_MAX_MACHINES}",
        )
    for machine in cluster.hosts:
        if not _MACHINE_NAME.fullmatch(machine.name):
            raise SpecError(
                f"machine {machine.name!r} is not a valid host name",
                "use up to 63 letters, digits, dots, hyphens and underscores",
            )
    limits = limits_of(cluster, shape.cores) if shape else [None] * cluster.num_machines
    subnet = free_subnet(name, taken_subnets)
    # Unique, since testbed names have no dots.
    switch = f"hr.{name}"
    hosts = tuple(
        Host(
            name=machine.name,
            namespace=f"{switch}.{machine.name}",
            link=f"v{i}",
            address=f"10.78.{subnet}.{i + 1}",
            folder=FOLDER / name / str(i),
            resources=machine.resources,
            limits=limits[i],
            cgroup=shape and shape.cgroups / f"{switch}.{machine.name}",
        )
        for i, machine in enumerate(cluster.hosts)
    )
    return HostLayout(
        name=name, boot_id=boot_id, subnet=subnet, switch=switch, with_ray=with_ray, hosts=hosts
    )


def limits_of(cluster: Cluster, cores: float) -> list[Limits]:
    """NIC rates as in the cluster file; cores in proportion to the machines' `cpu`."""
    if not cores > 0:
        raise SpecError(f"{cores:g} cores cannot be distributed", "give --cores a number above 0")
    cpus = [machine.resources.get("cpu", 0.0) for machine in cluster.hosts]
    for machine, cpu in zip(cluster.hosts, cpus, strict=True):
        if not cpu:
            raise SpecError(
                f"machine {machine.name} has no `cpu`, which determines its share of this"
                " machine's cores",
                "add its number of CPUs to the cluster file (resources: {cpu: 8})",
            )
    return [
        Limits(
            in_bytes_per_s=machine.nic_in,
            out_bytes_per_s=machine.nic_out,
            cores=cores * cpu / sum(cpus),
        )
        for machine, cpu in zip(cluster.hosts, cpus, strict=True)
    ]


def free_subnet(name: str, taken: Collection[int]) -> int:
    """The x of a free 10.78.x.0/24, the same for a name if possible; raises `SpecError` if none."""
    first = zlib.crc32(name.encode()) % _NUM_SUBNETS
    for i in range(_NUM_SUBNETS):
        subnet = (first + i) % _NUM_SUBNETS
        if subnet not in taken:
            return subnet
    raise SpecError("no network 10.78.x.0/24 is free", "take a testbed down")


def hosts_file(layout: HostLayout) -> str:
    """Content of `/etc/hosts` on every machine."""
    lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in layout.hosts)]
    return "".join(f"{line}\n" for line in lines)
