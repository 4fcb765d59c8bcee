"""A cluster on one machine: a switch, emulated machines in namespaces, a Ray node on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

from headrace.core.cluster import Cluster
from headrace.core.errors import RunError, SpecError
from headrace.testbed import builder, machines, network, processes, ray_nodes, state_file
from headrace.testbed.layout import DEFAULT_NAME, Host, HostLayout, check_name
from headrace.testbed.network import LinkBytes

_ATTEMPTS = 3  # Ray gives a node 30 s to start, which a machine with much else to do may need

State = Literal["up", "broken"]


def _silent(_: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Testbed:
    """A testbed that is up.

    Attributes:
        layout: Its names, addresses and processes.
        was_up: Whether it was there before it was asked for.
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
        say: Callable[[str], None] = _silent,
    ) -> Self:
        """Bring a testbed up, or find it up; what a crash has left is cleared away first.

        Args:
            cluster: Its machines.
            name: Testbeds of different names know nothing of each other.
            with_ray: Whether to start a Ray node on each machine.
            shaped: Whether network cards have the rates of the cluster file, and machines share
                this one's cores in proportion to their `cpu`. One that is up takes new figures.
            cores: How many cores they share; all of this machine if not told.
            say: Called with what begins.

        Raises:
            SpecError: This cannot be done here, or the name is used for another cluster.
            MissingExtraError: A package is not installed that this needs.
            RunError: Something did not start; nothing is left of it.
        """
        shape = builder.find_shape(shaped, cores)
        builder.check_can_make(with_ray)
        check_name(name)
        with state_file.locked(name):
            old = state_file.read(name)
            if old is not None:
                is_up = not problems_of(old)
                if is_up:
                    return cls(builder.as_asked(old, cluster, with_ray, shape), was_up=True)
                say("clearing away what is left of an earlier testbed")
                builder.remove(old)
            for _ in range(_ATTEMPTS - 1):
                try:
                    return cls(builder.make(cluster, name, with_ray, shape, say))
                except RunError as error:
                    say(f"{error.problem}; trying again")
            return cls(builder.make(cluster, name, with_ray, shape, say))

    @classmethod
    def find(cls, name: str = DEFAULT_NAME) -> Self:
        """A testbed that was brought up before.

        Raises:
            SpecError: There is none of that name.
        """
        found = cls.look(name)
        if found is None:
            others = ", ".join(state_file.names())
            raise SpecError(
                f"testbed {name!r} is not up" + (f" (up: {others})" if others else ""),
                f"headrace testbed up --name {name} --cluster cluster.yaml",
            )
        return found

    @classmethod
    def look(cls, name: str = DEFAULT_NAME) -> Self | None:
        """A testbed that was brought up before, if there is one of that name."""
        check_name(name)
        layout = state_file.read(name)
        return None if layout is None else cls(layout, was_up=True)

    def down(self) -> None:
        """Remove all of it; does nothing if it is gone already."""
        take_down(self.layout.name)

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The machines, in the cluster file's order; the first has Ray's head."""
        return self.layout.hosts

    @property
    def ray_address(self) -> str | None:
        """Where Ray's head listens, reachable from the machines alone."""
        return self.layout.ray_address

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """What to run, with `subprocess` for example, so that a command runs on a machine.

        Signals sent to it reach the command, its exit code is the command's (128 + n if signal n
        ended it), and the command ends with it.
        """
        return machines.enter_command(self.layout, host, command)

    def link_bytes(self, host: str) -> LinkBytes:
        """What a machine has received and sent, counted at the switch."""
        return network.link_bytes(self.layout)[self.layout.host(host).name]

    def traffic(self) -> dict[str, LinkBytes]:
        """`link_bytes` of all machines at one moment; of none if the switch is gone."""
        return network.link_bytes(self.layout)

    def set_nic(self, host: str, in_bytes_per_s: float, out_bytes_per_s: float) -> Self:
        """Change the rates of a machine's network card, while it is used.

        Returns:
            The testbed as it is now.

        Raises:
            SpecError: There is no such machine, it has no limits, or a rate is not above 0.
            RunError: Its network card is gone.
        """
        with state_file.locked(self.layout.name):
            now = state_file.read(self.layout.name) or self.layout
            return replace(self, layout=builder.set_nic(now, host, in_bytes_per_s, out_bytes_per_s))

    @property
    def state(self) -> State:
        """Whether all of it is there."""
        return "broken" if self.problems() else "up"

    def problems(self) -> list[str]:
        """What is wrong with it; empty if it is well."""
        return problems_of(self.layout)


def take_down(name: str = DEFAULT_NAME) -> bool:
    """Remove a testbed, or what a crash left of it.

    Returns:
        Whether there was something.
    """
    check_name(name)
    builder.check_is_root()
    with state_file.locked(name):
        layout = state_file.read(name)
        if layout is None:
            return False
        builder.remove(layout)
        return True


def problems_of(layout: HostLayout) -> list[str]:
    """What is wrong with a testbed; empty if it is well."""
    if layout.state != "up":
        return ["it was never completely up"]
    problems = [
        f"network namespace {namespace} is gone"
        for namespace in layout.namespaces
        if not (network.NAMESPACES / namespace).exists()
    ]
    dead = [host.name for host in layout.hosts if not processes.is_alive(host.init)]
    problems += [f"machine {name} has ended" for name in dead]
    problems += [
        f"the control group of machine {host.name} is gone"
        for host in layout.hosts
        if host.cgroup is not None and not host.cgroup.exists()
    ]
    if layout.with_ray:
        if not layout.ray_token.exists():
            problems.append("the token of its Ray cluster is gone")
        without = ray_nodes.names_without_ray(layout)
        problems += [f"Ray on machine {name} has ended" for name in without if name not in dead]
    return problems
