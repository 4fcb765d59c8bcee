"""A cluster emulated on one machine: a switch, machines in namespaces, a Ray node on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from headrace.core.cluster import Cluster
from headrace.core.errors import RunError, SpecError
from headrace.testbed import builder, machines, network, processes, ray_nodes, state_file
from headrace.testbed.layout import DEFAULT_NAME, Host, HostLayout, check_name
from headrace.testbed.network import LinkBytes

_ATTEMPTS = 3  # a Ray node must start within 30 s, which may fail on a loaded machine

State = Literal["up", "broken"]


def _silent(_: str) -> None:
    """Discard a message."""


@dataclass(frozen=True)
class Testbed:
    """A testbed that is up.

    Attributes:
        layout: Its names, addresses and processes.
        was_up: Whether it was already up.
    """

    __test__ = False  # pytest: this is no test

    layout: HostLayout
    was_up: bool = False

    @classmethod
    def up(
        cls,
        cluster: Cluster,
        name: str = DEFAULT_NAME,
        *,
        with_ray: bool = True,
        shaped: bool = False,
        cores: float | None = None,
        log: Callable[[str], None] = _silent,
    ) -> Self:
        """Start a testbed, or return it if it is up; remains of a crash are removed first.

        Args:
            cluster: Its machines.
            name: Testbeds of different names are independent.
            with_ray: Whether to start a Ray node on each machine.
            shaped: Whether to limit NICs to the rates of the cluster file, and CPU time in
                proportion to the machines' `cpu`. A testbed that is up gets the new limits.
            cores: Number of cores to distribute; None for all cores of this machine.
            log: Called with progress messages.

        Raises:
            SpecError: This machine does not support it, or the name is used for another cluster.
            MissingExtraError: A required package is not installed.
            RunError: A component did not start; everything is removed again.
        """
        shape = builder.find_shape(shaped, cores)
        builder.check_can_make(with_ray)
        check_name(name)
        with state_file.locked(name):
            old = state_file.read(name)
            if old is not None:
                is_up = not problems_of(old)
                if is_up:
                    return cls(builder.relimit(old, cluster, with_ray, shape), was_up=True)
                log("removing the remains of an earlier testbed")
                builder.remove(old)
            for _ in range(_ATTEMPTS - 1):
                try:
                    return cls(builder.make(cluster, name, with_ray, shape, log))
                except RunError as error:
                    log(f"{error.problem}; trying again")
            return cls(builder.make(cluster, name, with_ray, shape, log))

    @classmethod
    def find(cls, name: str = DEFAULT_NAME) -> Self:
        """A testbed that is up or broken; raises `SpecError` if there is none of that name."""
        found = cls.lookup(name)
        if found is None:
            others = ", ".join(state_file.names())
            raise SpecError(
                f"testbed {name!r} is not up" + (f" (up: {others})" if others else ""),
                f"headrace testbed up --name {name} --cluster cluster.yaml",
            )
        return found

    @classmethod
    def lookup(cls, name: str = DEFAULT_NAME) -> Self | None:
        """A testbed that is up or broken; None if there is none of that name."""
        check_name(name)
        layout = state_file.read(name)
        return None if layout is None else cls(layout, was_up=True)

    def down(self) -> None:
        """Remove the testbed, if it exists."""
        take_down(self.layout.name)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The machines, in the order of the cluster file; the first has Ray's head node."""
        return self.layout.hosts

    @property
    def ray_address(self) -> str | None:
        """Address of Ray's head node, reachable only from the machines."""
        return self.layout.ray_address

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """Command, for `subprocess` for example, that runs `command` on a machine.

        It forwards signals, exits with the command's exit code (128 + n after signal n), and kills
        the command when it ends.
        """
        return machines.enter_command(self.layout, host, command)

    def link_bytes(self, host: str) -> LinkBytes:
        """Bytes received and sent by a machine, counted at the switch."""
        return network.link_bytes(self.layout)[self.layout.host(host).name]

    def traffic(self) -> dict[str, LinkBytes]:
        """`link_bytes` of all machines; empty if the switch does not exist."""
        return network.link_bytes(self.layout)

    def set_nic(self, host: str, in_bytes_per_s: float, out_bytes_per_s: float) -> Self:
        """Change the rates of a machine's NIC while it is used; returns the updated testbed.

        Raises:
            SpecError: The machine does not exist or has no limits, or a rate is not above 0.
            RunError: Its NIC does not exist.
        """
        with state_file.locked(self.layout.name):
            now = state_file.read(self.layout.name) or self.layout
            return replace(self, layout=builder.set_nic(now, host, in_bytes_per_s, out_bytes_per_s))

    @property
    def state(self) -> State:
        """Whether it is complete."""
        return "broken" if self.problems() else "up"

    def problems(self) -> list[str]:
        """Problems of the testbed; empty if it is healthy."""
        return problems_of(self.layout)


def take_down(name: str = DEFAULT_NAME) -> bool:
    """Remove a testbed, or the remains of a crash; returns whether there was one."""
    check_name(name)
    builder.check_is_root()
    with state_file.locked(name):
        layout = state_file.read(name)
        if layout is None:
            return False
        builder.remove(layout)
        return True


def problems_of(layout: HostLayout) -> list[str]:
    """Problems of a testbed; empty if it is healthy."""
    if layout.state != "up":
        return ["it was never started completely"]
    problems = [
        f"network namespace {namespace} is gone"
        for namespace in layout.namespaces
        if not (network.NAMESPACES / namespace).exists()
    ]
    dead = [host.name for host in layout.hosts if not processes.is_alive(host.init)]
    problems += [f"machine {name} has exited" for name in dead]
    problems += [
        f"the control group of machine {host.name} is gone"
        for host in layout.hosts
        if host.cgroup is not None and not host.cgroup.exists()
    ]
    if layout.with_ray:
        if not layout.ray_token.exists():
            problems.append("the token of its Ray cluster is gone")
        without = ray_nodes.names_without_ray(layout)
        problems += [f"Ray on machine {name} has exited" for name in without if name not in dead]
    return problems
