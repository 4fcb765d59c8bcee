"""HTB classes of a machine's NIC, and the filters that classify packets."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from headrace.linux import htb
from headrace.linux.htb import DEFAULT, FIRST_FREE, LAST_FREE, ROOT, TRUNK, HtbClass
from headrace.linux.netlink import Classes, Counters
from headrace.runtime.traffic.class_shares import DEFAULT_PRIO, ClassShare, default_rate

_IP = 0x0800
_FIRST_FILTER = 0x80000001
_MOST_FILTERS = 4000
_TARGET_AT, _PORTS_AT = 16, 20

Connected = tuple[int, str, int]
"""Own port, and host and port of the peer."""


class Tree:
    """HTB tree of a NIC's outgoing traffic; replaces the interface's existing tree."""

    def __init__(self, route: Any, index: int, nic_bytes_per_s: float) -> None:
        self._route, self._index = route, index
        self.nic_bytes_per_s = nic_bytes_per_s
        self._classes = Classes(index)
        self._prios: dict[int, int] = {}
        self._filters: dict[Connected, int] = {}
        nic, rate = nic_bytes_per_s, default_rate(nic_bytes_per_s)
        trunk, rest = HtbClass(TRUNK, ROOT, nic, nic), HtbClass(DEFAULT, TRUNK, rate, nic)
        htb.apply(route, index, (trunk, replace(rest, prio=DEFAULT_PRIO)))

    @property
    def num_filters(self) -> int:
        """Number of classified connections."""
        return len(self._filters)

    def add(self, number: int, prio: int, connected: Connected) -> None:
        """Classify a connection's packets as a flow; the class is created if needed."""
        if connected in self._filters:
            return
        handle = FIRST_FREE + number
        if handle > LAST_FREE or len(self._filters) >= _MOST_FILTERS:
            return  # stays in the default class
        if number not in self._prios:
            nic = self.nic_bytes_per_s
            htb.add(self._route, self._index, HtbClass(handle, TRUNK, nic / 200, nic, prio))
            self._prios[number] = prio
        taken = set(self._filters.values())
        name = next(n for n in range(_MOST_FILTERS) if _FIRST_FILTER + n not in taken)
        self._filters[connected] = _FIRST_FILTER + name
        self._route.tc(
            "add-filter",
            "u32",
            self._index,
            _FIRST_FILTER + name,
            parent=ROOT,
            prio=1,
            protocol=_IP,
            target=handle,
            keys=filter_keys(connected),
        )

    def remove(self, connected: Connected) -> None:
        """Remove a connection's filter; the class of its flow stays."""
        handle = self._filters.pop(connected, None)
        if handle is not None:
            info = socket.htons(_IP) | 1 << 16
            self._route.tc("del-filter", None, self._index, handle, parent=ROOT, info=info)

    def change(self, shares: Mapping[int, ClassShare]) -> None:
        """Change the class parameters of flows."""
        self._classes.change(
            HtbClass(
                FIRST_FREE + number,
                TRUNK,
                share.rate_bytes_per_s,
                share.ceil_bytes_per_s,
                self._prios[number],
                share.quantum_bytes,
            )
            for number, share in shares.items()
            if number in self._prios
        )

    def counters(self) -> dict[int, Counters]:
        """Byte counters by flow."""
        found = self._classes.counters()
        return {
            number: found[FIRST_FREE + number]
            for number in self._prios
            if FIRST_FREE + number in found
        }

    @property
    def trunk_bytes_per_s(self) -> float:
        """Bandwidth at the last `counters`; another process may have changed it."""
        return self._classes.trunk_bytes_per_s or self.nic_bytes_per_s

    def close(self) -> None:
        """Close the netlink socket."""
        self._classes.close()


def filter_keys(connected: Connected) -> list[str]:
    """u32 filter keys of a connection, for IP headers without options."""
    own, host, peer = connected
    address = int.from_bytes(socket.inet_aton(host), "big")
    return [
        f"0x{address:08x}/0xffffffff+{_TARGET_AT}",
        f"0x{own:04x}{peer:04x}/0xffffffff+{_PORTS_AT}",
    ]


@contextmanager
def shaped(route: Any, index: int, nic_bytes_per_s: float) -> Iterator[Tree]:
    """Replace a NIC's tree; at exit restore a plain tree if it had one, else none."""
    was_shaped = htb.is_shaped(route, index)
    if was_shaped:
        nic_bytes_per_s = trunk_rate(route, index) or nic_bytes_per_s
    tree = Tree(route, index, nic_bytes_per_s)
    try:
        yield tree
    finally:
        tree.close()
        if was_shaped:
            # The rate may have changed meanwhile.
            rate = trunk_rate(route, index) or nic_bytes_per_s
            htb.apply(route, index, htb.plain_tree(rate))
        else:
            htb.clear(route, index)


def trunk_rate(route: Any, index: int) -> float | None:
    """Rate of a tree's trunk."""
    for each in route.get_classes(index=index):
        if each["handle"] == TRUNK:
            options = each.get_attr("TCA_OPTIONS")
            parms = None if options is None else options.get_attr("TCA_HTB_PARMS")
            return None if parms is None else htb.from_kernel(parms["rate"])
    return None


def netlink_errors() -> type[Exception]:
    """Exception of pyroute2 for a refused request."""
    from pyroute2 import NetlinkError

    error: type[Exception] = NetlinkError
    return error
