"""What a testbed is made of: its names and addresses, decided before anything is made."""

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
"""Of all testbeds. Like namespaces it does not outlive a reboot, and it keeps sockets' paths short:
Ray appends 64 characters, and 107 is what the kernel takes."""

RAY_PORT = 6379

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
# What Ray takes as a label's value; all of it may stand in a host name and a file name too.
_MACHINE_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_NUM_SUBNETS = 256
_MOST_MACHINES = 250


class Process(Value):
    """A process that cannot be mistaken for a later one with the same id.

    Attributes:
        pid: Its id on this machine, outside of all namespaces.
        start_ticks: When it began, in the kernel's ticks since boot.
    """

    pid: int
    start_ticks: int


class Limits(Value):
    """What a machine has at most.

    Attributes:
        in_bytes_per_s: Data that its network card receives.
        out_bytes_per_s: Data that its network card sends.
        cores: CPU time of all its processes together, in cores of this machine.
    """

    in_bytes_per_s: float
    out_bytes_per_s: float
    cores: float


class Host(Value):
    """One emulated machine.

    Attributes:
        name: As in the cluster file; also its host name and the label `host` of its Ray node.
        namespace: Of its network.
        link: The switch's end of its network cable; its own end is `eth0`.
        address: Its IPv4 address.
        folder: For its temporary files, log and Ray node.
        resources: As in the cluster file.
        limits: Of its network card and CPU time, if there are any.
        cgroup: Folder of the control group that all its processes are in, if there are limits.
        holder: Parent of `init`, outside of the process namespace.
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
    """That machines are to have limits.

    Attributes:
        cores: How many of this machine's cores they share.
        cgroups: Folder for their control groups.
    """

    cores: float
    cgroups: Path


class HostLayout(Value):
    """A testbed as it is written to its state file.

    Attributes:
        version: Of the file.
        name: Of the testbed.
        state: `starting` until all is there; a crash leaves it so.
        boot_id: Of the boot in which its processes began.
        subnet: The x of 10.78.x.0/24.
        switch: Network namespace of the bridge.
        with_ray: Whether each machine has a Ray node.
        hosts: The machines, in the cluster file's order; the first has Ray's head.
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
        """Holds all files of the testbed."""
        return FOLDER / self.name

    @property
    def ray_address(self) -> str | None:
        """Where Ray's head listens."""
        return f"{self.hosts[0].address}:{RAY_PORT}" if self.with_ray else None

    @property
    def ray_token(self) -> Path:
        """File of the token without which Ray answers nobody."""
        return self.folder / "ray-token"

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Names of all network namespaces."""
        return (self.switch, *(host.namespace for host in self.hosts))

    def host(self, name: str) -> Host:
        """The machine of that name.

        Raises:
            SpecError: There is none.
        """
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(host.name for host in self.hosts)
        raise SpecError(f"testbed {self.name!r} has no machine {name!r}", f"name one of {known}")

    @property
    def is_shaped(self) -> bool:
        """Whether its machines have limits."""
        return self.hosts[0].limits is not None

    def is_of(self, other: HostLayout) -> bool:
        """Whether it has the same machines, and limits if the other one has; of any size."""
        return self._kind == other._kind

    @property
    def _kind(self) -> object:
        hosts = [(host.name, dict(host.resources)) for host in self.hosts]
        return hosts, self.with_ray, self.is_shaped


def check_name(name: str) -> None:
    """Refuse a testbed's name that would not fit into the names made of it.

    Raises:
        SpecError: It is too long or has other characters.
    """
    if not _NAME.fullmatch(name):
        raise SpecError(
            f"{name!r} cannot name a testbed", "use up to 20 small letters, digits and hyphens"
        )


def lay_out(
    cluster: Cluster,
    name: str,
    boot_id: str,
    with_ray: bool,
    taken_subnets: Collection[int],
    shape: Shape | None = None,
) -> HostLayout:
    """Decide all names and addresses, and limits if machines are to have some.

    Raises:
        SpecError: A name, or the number of machines, cannot be emulated.
    """
    check_name(name)
    if cluster.num_machines > _MOST_MACHINES:
        raise SpecError(
            f"{cluster.num_machines} machines do not fit into a testbed",
            f"use a cluster file with at most {_MOST_MACHINES}",
        )
    for machine in cluster.hosts:
        if not _MACHINE_NAME.fullmatch(machine.name):
            raise SpecError(
                f"machine {machine.name!r} cannot be a host's name",
                "use up to 63 letters, digits, dots, hyphens and underscores",
            )
    limits = limits_of(cluster, shape.cores) if shape else [None] * cluster.num_machines
    subnet = free_subnet(name, taken_subnets)
    # A testbed's name has no dot, so no two testbeds make the same name.
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
    """Network cards as in the cluster file; cores in proportion to the machines' `cpu`.

    Raises:
        SpecError: There are no cores to share, or a machine has no part in them.
    """
    if not cores > 0:
        raise SpecError(f"{cores:g} cores cannot be shared", "give --cores a number above 0")
    cpus = [machine.resources.get("cpu", 0.0) for machine in cluster.hosts]
    for machine, cpu in zip(cluster.hosts, cpus, strict=True):
        if not cpu:
            raise SpecError(
                f"machine {machine.name} has no `cpu`, so its share of this machine's cores is"
                " not known",
                "write how many it has into the cluster file (resources: {cpu: 8})",
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
    """The x of a 10.78.x.0/24 that nobody uses; the same for a name if possible.

    Raises:
        SpecError: All are taken.
    """
    first = zlib.crc32(name.encode()) % _NUM_SUBNETS
    for i in range(_NUM_SUBNETS):
        subnet = (first + i) % _NUM_SUBNETS
        if subnet not in taken:
            return subnet
    raise SpecError("no network 10.78.x.0/24 is free", "take a testbed down")


def hosts_file(layout: HostLayout) -> str:
    """What `/etc/hosts` says on every machine: they find each other by name."""
    lines = ["127.0.0.1 localhost", *(f"{host.address} {host.name}" for host in layout.hosts)]
    return "".join(f"{line}\n" for line in lines)
