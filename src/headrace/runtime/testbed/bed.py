"""A cluster on one machine: a switch, emulated machines in namespaces, a Ray node on each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from headrace.core.cluster import Cluster
from headrace.core.errors import SpecError
from headrace.runtime.errors import RunError
from headrace.runtime.testbed import machines, network, processes, ray_nodes, record
from headrace.runtime.testbed.layout import DEFAULT_NAME, Host, Layout, check_name, lay_out
from headrace.runtime.testbed.network import LinkBytes

_RAY_START_S = 120.0
_END_S = 20.0
_ATTEMPTS = 3  # Ray gives a node 30 s to start, which a machine with much else to do may need
_NEEDED = ("ip", "unshare", "sh")

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

    layout: Layout
    was_up: bool = False

    @classmethod
    def up(
        cls,
        cluster: Cluster,
        name: str = DEFAULT_NAME,
        *,
        with_ray: bool = True,
        say: Callable[[str], None] = _silent,
    ) -> Self:
        """Bring a testbed up, or find it up; what a crash has left is cleared away first.

        Args:
            cluster: Its machines.
            name: Testbeds of different names know nothing of each other.
            with_ray: Whether to start a Ray node on each machine.
            say: Called with what begins.

        Raises:
            SpecError: This cannot be done here, or the name is used for another cluster.
            RunError: Something did not start; nothing is left of it.
        """
        _check_can_make(with_ray)
        check_name(name)
        with record.locked(name):
            old = record.read(name)
            if old is not None:
                is_up = not problems_of(old)
                if is_up and old.is_of(cluster, with_ray):
                    return cls(old, was_up=True)
                if is_up:
                    raise SpecError(
                        f"testbed {name!r} is up with other machines",
                        f"take it down (headrace testbed down --name {name}) or choose a --name",
                    )
                say("clearing away what is left of an earlier testbed")
                _remove(old)
            for _ in range(_ATTEMPTS - 1):
                try:
                    return cls(_make(_lay_out(cluster, name, with_ray), say))
                except RunError as error:
                    say(f"{error.problem}; trying again")
            return cls(_make(_lay_out(cluster, name, with_ray), say))

    @classmethod
    def find(cls, name: str = DEFAULT_NAME) -> Self:
        """A testbed that was brought up before.

        Raises:
            SpecError: There is none of that name.
        """
        found = cls.look(name)
        if found is None:
            others = ", ".join(record.names())
            raise SpecError(
                f"testbed {name!r} is not up" + (f" (up: {others})" if others else ""),
                f"headrace testbed up --name {name} --cluster cluster.yaml",
            )
        return found

    @classmethod
    def look(cls, name: str = DEFAULT_NAME) -> Self | None:
        """A testbed that was brought up before, if there is one of that name."""
        check_name(name)
        layout = record.read(name)
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
    _check_is_root()
    with record.locked(name):
        layout = record.read(name)
        if layout is None:
            return False
        _remove(layout)
        return True


def problems_of(layout: Layout) -> list[str]:
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
    if layout.with_ray:
        if not layout.ray_token.exists():
            problems.append("the token of its Ray cluster is gone")
        without = ray_nodes.names_without_ray(layout)
        problems += [f"Ray on machine {name} has ended" for name in without if name not in dead]
    return problems


def _check_is_root() -> None:
    if os.geteuid() != 0:
        raise SpecError(
            "making network namespaces needs root", "run it with sudo, or as root in a container"
        )


def _check_can_make(with_ray: bool) -> None:
    missing = [program for program in _NEEDED if shutil.which(program) is None]
    if missing:
        raise SpecError(
            f"a testbed is made with {', '.join(missing)}, which this machine does not have",
            "install iproute2 and util-linux (Linux only)",
        )
    _check_is_root()
    if with_ray:
        ray_nodes.check_ray()


def _lay_out(cluster: Cluster, name: str, with_ray: bool) -> Layout:
    others = (record.read(other) for other in record.names() if other != name)
    taken = network.taken_subnets() | {other.subnet for other in others if other is not None}
    layout = lay_out(cluster, name, processes.boot_id(), with_ray, taken)
    if with_ray:
        for host in layout.hosts:
            ray_nodes.node_command(layout, host)  # refuses what Ray cannot have, before all else
    for namespace in layout.namespaces:
        if (network.NAMESPACES / namespace).exists():
            raise SpecError(
                f"network namespace {namespace} exists, and no testbed has made it",
                f"remove it (ip netns del {namespace}) or choose another --name",
            )
    return layout


def _make(layout: Layout, say: Callable[[str], None]) -> Layout:
    record.write(layout)
    try:
        say(f"connecting {len(layout.hosts)} machines (10.78.{layout.subnet}.0/24)")
        network.make_network(layout)
        hosts = tuple(machines.start_machine(layout, host) for host in layout.hosts)
        layout = layout.model_copy(update={"hosts": hosts})
        record.write(layout)
        if layout.with_ray:
            ray_nodes.start_nodes(layout, say, _RAY_START_S)
        layout = layout.model_copy(update={"state": "up"})
        record.write(layout)
    except BaseException:
        _remove(layout)
        raise
    return layout


def _remove(layout: Layout) -> None:
    left = machines.end_machines(layout, _END_S)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise RunError(
            f"processes {pids} of testbed {layout.name!r} do not end within {_END_S:g} s",
            "look at what they wait for (/proc/PID/stack), then take it down again",
        )
    for namespace in layout.namespaces:
        network.remove_namespace(namespace)
    record.forget(layout)
