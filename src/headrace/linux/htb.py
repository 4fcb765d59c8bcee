"""Bandwidth classes (HTB) of a network interface, set through pyroute2.

All trees have the same shape. The root qdisc `ROOT` has one class `TRUNK` with the rate of the NIC.
Below it are the class `DEFAULT` for packets that no filter matches, and classes with handles from
`FIRST_FREE` to `LAST_FREE`. Only outgoing traffic is limited.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.core.errors import MissingExtraError

ROOT = 0x10000
"""Handle of the root qdisc: 1:0 in `tc`."""

TRUNK = 0x10001
"""Class 1:1, with the rate of the NIC."""

DEFAULT = 0x10002
"""Class 1:2 below the trunk, for packets that no filter matches."""

FIRST_FREE, LAST_FREE = 0x10010, 0x17FFF
"""Handles for further classes below the trunk."""

QUANTUM_BYTES = 60_000
"""Bytes a class sends per turn when borrowing. Always set: the kernel's default depends on the rate
and causes warnings."""

DATA_SHARE = 1448 / 1514
"""TCP payload of a full Ethernet packet. The kernel counts packets; rates here are of payload."""

_NO_CLASS = 0xFFFFFFFF  # the kernel's value for the trunk's parent
_MIN_BURST_BYTES = 65_536  # the largest packet of a socket
_BURST_S = 0.002  # compensates late timers on a loaded machine
_MIN_QUEUE_BYTES = 131_072
_QUEUE_S = 0.04


class Route(Protocol):
    """The used methods of pyroute2's `IPRoute`."""

    def tc(
        self,
        command: str,
        kind: str | None = None,
        index: int | None = None,
        handle: int | None = None,
        **options: Any,
    ) -> Any:
        """Change qdiscs, classes or filters."""

    def link_lookup(self, *, ifname: str) -> list[int]:
        """Indices of the interfaces with that name."""


@dataclass(frozen=True)
class HtbClass:
    """A bandwidth class.

    Attributes:
        handle: Handle of the class.
        parent: The class it borrows from; `ROOT` for the trunk.
        rate_bytes_per_s: Guaranteed rate, if the rates below a parent sum up to at most the
            parent's.
        ceil_bytes_per_s: Maximum rate, when borrowing.
        prio: Classes with smaller values borrow first.
        quantum_bytes: Borrowing classes share in proportion to this.
    """

    handle: int
    parent: int
    rate_bytes_per_s: float
    ceil_bytes_per_s: float
    prio: int = 0
    quantum_bytes: int = QUANTUM_BYTES


def plain_tree(nic_bytes_per_s: float) -> tuple[HtbClass, HtbClass]:
    """A tree with the NIC's rate for all packets."""
    rate = nic_bytes_per_s
    return HtbClass(TRUNK, ROOT, rate, rate), HtbClass(DEFAULT, TRUNK, rate, rate)


def to_kernel(bytes_per_s: float) -> int:
    """Convert a payload rate to a packet rate."""
    return max(1, round(bytes_per_s / DATA_SHARE))


def from_kernel(bytes_per_s: float) -> float:
    """Convert a packet rate to a payload rate."""
    return bytes_per_s * DATA_SHARE


def burst_bytes(rate_bytes_per_s: float) -> int:
    """Bytes that may be sent at once after a pause."""
    return max(_MIN_BURST_BYTES, int(rate_bytes_per_s * _BURST_S))


def queue_bytes(rate_bytes_per_s: float) -> int:
    """Queue limit at a rate; more is dropped, which bounds the queueing delay."""
    return max(_MIN_QUEUE_BYTES, int(rate_bytes_per_s * _QUEUE_S))


def apply(route: Route, index: int, classes: Iterable[HtbClass]) -> None:
    """Replace an interface's qdisc by a tree of classes. Queued packets are lost.

    `classes` has parents before children and includes `TRUNK` and `DEFAULT`.
    """
    clear(route, index)
    route.tc("add", "htb", index, ROOT, default=DEFAULT & 0xFFFF)
    for each in classes:
        add(route, index, each)


def add(route: Route, index: int, new: HtbClass) -> None:
    """Add a class and, unless it is the trunk, its queue."""
    _set_class(route, "add-class", index, new)
    if new.handle != TRUNK:
        _add_queue(route, index, new)


def change(route: Route, index: int, changed: HtbClass) -> None:
    """Change the rates of a class while traffic flows.

    A new `prio` has no effect while packets are queued: change rates instead.
    """
    _set_class(route, "change-class", index, changed)


def remove(route: Route, index: int, handle: int) -> None:
    """Remove a class and its queue; its filters must have been removed before."""
    route.tc("del-class", "htb", index, handle)


def clear(route: Route, index: int) -> None:
    """Remove the whole tree with its filters, if there is one."""
    with suppress(_netlink_error()):
        route.tc("del", index=index, handle=0, root=True)


def is_shaped(route: Route, index: int) -> bool:
    """Whether an interface has an HTB root qdisc with handle `ROOT`."""
    return any(
        each["handle"] == ROOT and each.get_attr("TCA_KIND") == "htb"
        for each in route.tc("dump", index=index)
        if each["index"] == index
    )


def classes_of(route: Route, index: int) -> tuple[HtbClass, ...]:
    """All classes of an interface, parents before children."""
    found = [_read(each) for each in route.tc("get-class", index=index) if each["index"] == index]
    return tuple(sorted(found, key=lambda each: (each.parent != ROOT, each.handle)))


def scale(route: Route, index: int, nic_bytes_per_s: float) -> None:
    """Change the trunk's rate while traffic flows, and all others in proportion.

    A class keeps its rate even if its parent has less, so changing the trunk alone has no effect.
    Raises `LookupError` if the interface has no such tree.
    """
    classes = classes_of(route, index)
    if not classes or classes[0].handle != TRUNK:
        raise LookupError(f"interface {index}")
    factor = nic_bytes_per_s / classes[0].rate_bytes_per_s
    for each in classes:
        rate, ceil = each.rate_bytes_per_s * factor, each.ceil_bytes_per_s * factor
        change(route, index, replace(each, rate_bytes_per_s=rate, ceil_bytes_per_s=ceil))
        if each.handle != TRUNK:
            with suppress(_netlink_error()):  # fq_codel queues have no size to change
                _set_queue(route, "change", index, each.handle, ceil)


def number_of(route: Route, interface: str) -> int:
    """Index of an interface; raises `LookupError` if there is none of that name."""
    found = route.link_lookup(ifname=interface)
    if not found:
        raise LookupError(interface)
    return int(found[0])


@contextmanager
def open_route(namespace: str | None = None) -> Iterator[Any]:
    """Open a netlink socket in a network namespace, by default that of this process.

    Use it only in the thread that opened it.

    Raises:
        MissingExtraError: pyroute2 is not installed.
        OSError: The namespace does not exist or cannot be entered.
    """
    check_pyroute2()
    from pyroute2 import IPRoute

    with nullcontext() if namespace is None else _inside(namespace):
        route = IPRoute()
    with route:
        yield route


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """Switch this thread to another network namespace.

    pyroute2 would fork to do so, which is unsafe in a process with threads.
    """
    from pyroute2.netns import setns

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        setns(namespace, flags=0)
        try:
            yield
        finally:
            setns(home)
    finally:
        os.close(home)


def check_pyroute2() -> None:
    """Raise `MissingExtraError` if pyroute2 is not installed."""
    from importlib.util import find_spec

    if find_spec("pyroute2") is None:
        raise MissingExtraError(
            "pyroute2, which sets bandwidth limits, is not installed",
            "pip install 'headrace[shape]'",
        )


def _netlink_error() -> type[Exception]:
    from pyroute2 import NetlinkError

    error: type[Exception] = NetlinkError
    return error


def _read(message: Any) -> HtbClass:
    options = message.get_attr("TCA_OPTIONS")
    values = options.get_attr("TCA_HTB_PARMS")
    return HtbClass(
        handle=message["handle"],
        parent=ROOT if message["parent"] == _NO_CLASS else message["parent"],
        rate_bytes_per_s=from_kernel(options.get_attr("TCA_HTB_RATE64") or values["rate"]),
        ceil_bytes_per_s=from_kernel(options.get_attr("TCA_HTB_CEIL64") or values["ceil"]),
        prio=values["prio"],
        quantum_bytes=values["quantum"],
    )


def _set_class(route: Route, command: str, index: int, new: HtbClass) -> None:
    rate, ceil = to_kernel(new.rate_bytes_per_s), to_kernel(new.ceil_bytes_per_s)
    route.tc(
        command,
        "htb",
        index,
        new.handle,
        parent=new.parent,
        rate=rate,
        ceil=ceil,
        prio=new.prio,
        quantum=new.quantum_bytes,
        burst=burst_bytes(rate),
        cburst=burst_bytes(ceil),
    )


def _add_queue(route: Route, index: int, owner: HtbClass) -> None:
    """Add an fq_codel queue, or a bfifo queue if the kernel lacks fq_codel."""
    try:
        route.tc("add", "fq_codel", index, _queue_of(owner.handle), parent=owner.handle)
    except _netlink_error():
        _set_queue(route, "add", index, owner.handle, owner.ceil_bytes_per_s)


def _set_queue(route: Route, command: str, index: int, owner: int, ceil: float) -> None:
    from pyroute2.netlink.rtnl.tcmsg import plugins

    # bfifo has the options of pfifo, but pyroute2 supports only the latter.
    plugins.setdefault("bfifo", plugins["pfifo"])
    route.tc(command, "bfifo", index, _queue_of(owner), parent=owner, limit=queue_bytes(ceil))


def _queue_of(handle: int) -> int:
    return (handle & 0xFFFF) << 16
