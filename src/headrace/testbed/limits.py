"""Apply the limits of emulated machines: NIC rates and CPU time."""

from __future__ import annotations

from headrace.core.errors import RunError
from headrace.linux import htb
from headrace.testbed import cgroups, network
from headrace.testbed.layout import Host, HostLayout, Limits

CARD = "eth0"


def shape_links(layout: HostLayout) -> None:
    """Limit all links before they are used.

    A machine's own end limits what it sends, the switch's end what it receives.
    """
    for host in layout.hosts:
        if host.limits is not None:
            network.use_cubic(host)
            with htb.open_route(host.namespace) as route:
                card = htb.number_of(route, CARD)
                htb.apply(route, card, htb.plain_tree(host.limits.out_bytes_per_s))
    with htb.open_route(layout.switch) as route:
        for host in layout.hosts:
            if host.limits is not None:
                link = htb.number_of(route, host.link)
                htb.apply(route, link, htb.plain_tree(host.limits.in_bytes_per_s))


def change_links(layout: HostLayout, host: Host, limits: Limits) -> None:
    """Change the rates of a machine's link while it is used; other classes keep their shares."""
    try:
        with htb.open_route(host.namespace) as route:
            htb.scale(route, htb.number_of(route, CARD), limits.out_bytes_per_s)
        with htb.open_route(layout.switch) as route:
            htb.scale(route, htb.number_of(route, host.link), limits.in_bytes_per_s)
    except (OSError, LookupError):
        raise RunError(
            f"machine {host.name} has no NIC, or its NIC has no limits",
            f"bring the testbed up again: headrace testbed up --name {layout.name} --cluster ...",
        ) from None


def make_groups(layout: HostLayout) -> None:
    """Create all control groups, without limits, so that machines start fast."""
    for host in layout.hosts:
        if host.cgroup is not None:
            cgroups.make(host.cgroup)


def limit_cores(host: Host) -> None:
    """Apply a machine's CPU limit."""
    if host.cgroup is not None and host.limits is not None:
        cgroups.limit(host.cgroup, host.limits.cores)


def remove_groups(layout: HostLayout, deadline_s: float) -> None:
    """Remove all control groups; their processes have been killed."""
    for host in layout.hosts:
        if host.cgroup is not None:
            cgroups.remove(host.cgroup, deadline_s)
