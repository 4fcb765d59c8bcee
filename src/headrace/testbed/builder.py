"""Create, change and remove a testbed; the caller holds the lock of its name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.core.cluster import Cluster
from headrace.core.errors import RunError, SpecError
from headrace.linux import htb
from headrace.testbed import cgroups, machines, network, processes, ray_nodes, state_file
from headrace.testbed import limits as shaping
from headrace.testbed.layout import Host, HostLayout, Shape, lay_out

_RAY_START_TIMEOUT_S = 120.0
_END_TIMEOUT_S = 60.0
_NEEDED = ("ip", "unshare", "sh")


def check_is_root() -> None:
    """Raise `SpecError` unless this user is root."""
    if os.geteuid() != 0:
        raise SpecError(
            "network namespaces require root", "run it with sudo, or as root in a container"
        )


def check_can_make(with_ray: bool) -> None:
    """Check the prerequisites of a testbed."""
    missing = [program for program in _NEEDED if shutil.which(program) is None]
    if missing:
        raise SpecError(
            f"a testbed requires {', '.join(missing)}, not found on this machine",
            "install iproute2 and util-linux (Linux only)",
        )
    check_is_root()
    if with_ray:
        ray_nodes.check_ray()


def find_shape(shaped: bool, cores: float | None) -> Shape | None:
    """Cores and cgroup directory for limits; None if `shaped` is false."""
    if not shaped:
        if cores is not None:
            raise SpecError("only a shaped testbed limits cores", "add --shaped")
        return None
    htb.check_pyroute2()
    if cores is None:
        cores = float(len(os.sched_getaffinity(0)))
    return Shape(cores, cgroups.find_top())


def _lay_out(cluster: Cluster, name: str, with_ray: bool, shape: Shape | None) -> HostLayout:
    taken = network.taken_subnets()
    for other in state_file.names():
        # A testbed of another version cannot be read; its namespaces separate equal subnets.
        with suppress(SpecError):
            if other != name and (known := state_file.read(other)) is not None:
                taken.add(known.subnet)
    layout = lay_out(cluster, name, processes.boot_id(), with_ray, taken, shape)
    if with_ray:
        for host in layout.hosts:
            ray_nodes.node_command(layout, host)  # checks the resources first
    for namespace in layout.namespaces:
        if (network.NAMESPACES / namespace).exists():
            raise SpecError(
                f"network namespace {namespace} exists, but belongs to no testbed",
                f"remove it (ip netns del {namespace}) or choose another --name",
            )
    for host in layout.hosts:
        if host.cgroup is not None and host.cgroup.exists():
            raise SpecError(
                f"control group {host.cgroup} exists, but belongs to no testbed",
                f"remove it (rmdir {host.cgroup}) or choose another --name",
            )
    return layout


def relimit(old: HostLayout, cluster: Cluster, with_ray: bool, shape: Shape | None) -> HostLayout:
    """Apply new limits to a testbed that is up."""
    new = lay_out(cluster, old.name, old.boot_id, with_ray, (), shape)
    if not old.is_of(new):
        is_limit = old.is_shaped != new.is_shaped
        with_what = ("no limits" if new.is_shaped else "limits") if is_limit else "other machines"
        raise SpecError(
            f"testbed {old.name!r} is up with {with_what}",
            f"take it down (headrace testbed down --name {old.name}) or choose a --name",
        )
    hosts = []
    for host, wanted in zip(old.hosts, new.hosts, strict=True):
        if wanted.limits is not None and host.limits != wanted.limits:
            shaping.change_links(old, host, wanted.limits)
            host = host.model_copy(update={"limits": wanted.limits})
            shaping.limit_cores(host)
        hosts.append(host)
    return _rewrite(old, hosts)


def set_nic(
    layout: HostLayout, name: str, in_bytes_per_s: float, out_bytes_per_s: float
) -> HostLayout:
    """Change the rates of a machine's NIC."""
    changed = layout.host(name)
    if changed.limits is None:
        raise SpecError(
            f"machine {name} of testbed {layout.name!r} has no limits to change",
            "take the testbed down and bring it up with --shaped",
        )
    if not (in_bytes_per_s > 0 and out_bytes_per_s > 0):
        raise SpecError("the bandwidth of a NIC must be above 0", "give rates above 0")
    rates = {"in_bytes_per_s": in_bytes_per_s, "out_bytes_per_s": out_bytes_per_s}
    limits = changed.limits.model_copy(update=rates)
    shaping.change_links(layout, changed, limits)
    new = changed.model_copy(update={"limits": limits})
    return _rewrite(layout, [new if host == changed else host for host in layout.hosts])


def _rewrite(layout: HostLayout, hosts: Sequence[Host]) -> HostLayout:
    new = layout.model_copy(update={"hosts": tuple(hosts)})
    if new != layout:
        state_file.write(new)
    return new


def make(
    cluster: Cluster,
    name: str,
    with_ray: bool,
    shape: Shape | None,
    log: Callable[[str], None],
) -> HostLayout:
    """Create a testbed from scratch."""
    layout = _lay_out(cluster, name, with_ray, shape)
    state_file.write(layout)
    try:
        log(f"connecting {len(layout.hosts)} machines (10.78.{layout.subnet}.0/24)")
        network.make_network(layout)
        if layout.is_shaped:
            shaping.shape_links(layout)
            shaping.make_groups(layout)
        hosts = tuple(machines.start_machine(layout, host) for host in layout.hosts)
        layout = layout.model_copy(update={"hosts": hosts})
        state_file.write(layout)
        if layout.with_ray:
            ray_nodes.start_nodes(layout, log, _RAY_START_TIMEOUT_S)
            ray_nodes.warm(layout)
        for host in layout.hosts:
            shaping.limit_cores(host)  # only now: a Ray node must start within 30 s
        layout = layout.model_copy(update={"state": "up"})
        state_file.write(layout)
    except BaseException:
        remove(layout)
        raise
    return layout


def remove(layout: HostLayout) -> None:
    """Remove everything that exists of a testbed."""
    left = machines.end_machines(layout, _END_TIMEOUT_S)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise RunError(
            f"processes {pids} of testbed {layout.name!r} did not end within {_END_TIMEOUT_S:g} s",
            "check where they block (/proc/PID/stack), then take it down again",
        )
    for namespace in layout.namespaces:
        network.remove_namespace(namespace)
    shaping.remove_groups(layout, _END_TIMEOUT_S)
    state_file.forget(layout)
