"""Network namespaces, bridge and veth pairs of a testbed, created with `ip`."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.core.errors import RunError
from headrace.testbed.layout import Host, HostLayout

NAMESPACES = Path("/run/netns")
_SUBNET = re.compile(r"\b10\.78\.(\d+)\.")

# Also for interfaces created later. Otherwise the switch sends IPv6 reports.
_SILENCE = """
for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do
  if [ -w "$file" ]; then echo 1 > "$file"; fi
done
"""


_WAYS = ("tx", "rx")
"""Sent by the switch's end means received by the machine."""


class LinkBytes(NamedTuple):
    """Bytes and packets received and sent by a machine; bytes are with Ethernet headers."""

    received: int
    sent: int
    received_packets: int = 0
    sent_packets: int = 0


def switch_commands(layout: HostLayout) -> list[str]:
    """Lines for `ip -batch` inside the switch's namespace.

    Multicast snooping is off, so that only the machines' own traffic is counted.
    """
    lines = ["link add br0 type bridge mcast_snooping 0", "link set br0 up"]
    for host in layout.hosts:
        lines.append(f"link add {host.link} type veth peer name eth0 netns {host.namespace}")
        lines.append(f"link set {host.link} master br0 up")
    return lines


def host_commands(host: Host) -> list[str]:
    """Lines for `ip -batch` inside a machine's namespace."""
    return [
        "link set lo up",
        "link set eth0 addrgenmode none",
        f"addr add {host.address}/24 brd + dev eth0",
        "link set eth0 up",
    ]


def use_cubic(host: Host) -> None:
    """Use TCP CUBIC, Linux's default, for a machine's traffic.

    With BBR, senders that share a slow NIC lose and resend a fifth of their data. It is set on the
    route, because a namespace may select only the algorithms that the host allows.
    """
    subnet = f"{host.address.rpartition('.')[0]}.0/24"
    route = f"route replace {subnet} dev eth0 proto kernel scope link src {host.address}"
    _ip(["-n", host.namespace, *route.split(), "congctl", "cubic"])


def make_network(layout: HostLayout) -> None:
    """Create all namespaces and connect them."""
    for namespace in layout.namespaces:
        _ip(["netns", "add", namespace])
    _ip(["netns", "exec", layout.switch, "sh", "-c", _SILENCE])
    _ip(["-n", layout.switch, "-batch", "-"], switch_commands(layout))
    for host in layout.hosts:
        _ip(["-n", host.namespace, "-batch", "-"], host_commands(host))


def remove_namespace(namespace: str) -> None:
    """Remove a namespace and its links, if it exists."""
    if (NAMESPACES / namespace).exists():
        _ip(["netns", "del", namespace])


def taken_subnets() -> set[int]:
    """Each x of a 10.78.x.0/24 in which this machine has an address or a route."""
    seen = _ip(["-4", "addr", "show"]) + _ip(["-4", "route", "show"])
    return {int(x) for x in _SUBNET.findall(seen)}


def link_bytes(layout: HostLayout) -> dict[str, LinkBytes]:
    """Byte counters of all existing links, by the machine's name."""
    if not (NAMESPACES / layout.switch).exists():
        return {}
    links = json.loads(_ip(["-n", layout.switch, "-s", "-j", "link", "show"]))
    counters = {each["ifname"]: each["stats64"] for each in links}
    return {
        host.name: LinkBytes(
            *(counters[host.link][way][unit] for unit in ("bytes", "packets") for way in _WAYS)
        )
        for host in layout.hosts
        if host.link in counters
    }


def _ip(words: Sequence[str], batch: Sequence[str] = ()) -> str:
    text = "".join(f"{line}\n" for line in batch)
    done = subprocess.run(
        ["ip", *words], input=text, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode != 0:
        raise RunError(
            f"`ip {' '.join(words)}` failed: {done.stderr.strip()}",
            "check that this user may create network namespaces (CAP_SYS_ADMIN and CAP_NET_ADMIN)",
        )
    return done.stdout
