"""Bandwidth classes of a network interface: the kernel's HTB, told what to do through pyroute2.

All trees look alike. The root queue `ROOT` has one class `TRUNK` with the rate of the network card;
below it is the class `DEFAULT` for whatever no filter sends elsewhere, and room for others with
handles from `FIRST_FREE` to `LAST_FREE`. What leaves the interface is limited, never what arrives.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

from headrace.core.errors import MissingExtraError

ROOT = 0x10000
"""Handle of the root queue: 1:0 in the words of `tc`."""

TRUNK = 0x10001
"""Class 1:1, which has the rate of the network card."""

DEFAULT = 0x10002
"""Class 1:2 below the trunk: where packets go that no filter has sent elsewhere."""

FIRST_FREE, LAST_FREE = 0x10010, 0x17FFF
"""Handles for further classes below the trunk."""

QUANTUM_BYTES = 60_000
"""What a class may send before the next has its turn, if both want more than their rates. Always
given: the kernel would derive it from the rate, and complain about what it finds."""

DATA_SHARE = 1448 / 1514
"""Of a full Ethernet packet: what TCP carries of data. The kernel counts packets; rates here are of
data, as in a cluster file."""

_NO_CLASS = 0xFFFFFFFF  # what the kernel says of the trunk's parent
_MIN_BURST_BYTES = 65_536  # the largest packet that a socket hands down
_BURST_S = 0.002  # a timer comes late on a machine with much to do; the burst makes up for it
_MIN_QUEUE_BYTES = 131_072
_QUEUE_S = 0.04


class Route(Protocol):
    """What is used of pyroute2's `IPRoute`."""

    def tc(
        self,
        command: str,
        kind: str | None = None,
        index: int | None = None,
        handle: int | None = None,
        **options: Any,
    ) -> Any:
        """Change queues, classes or filters."""

    def link_lookup(self, *, ifname: str) -> list[int]:
        """Numbers of the interfaces with that name."""


@dataclass(frozen=True)
class HtbClass:
    """A class of packets that share bandwidth.

    Attributes:
        handle: Number of the class.
        parent: The class it borrows from; `ROOT` for the trunk.
        rate_bytes_per_s: What it has for sure, as long as the rates below a parent sum up to the
            parent's at most.
        ceil_bytes_per_s: What it gets at most, if others leave it.
        prio: Smaller ones are first to borrow.
        quantum_bytes: Classes that borrow do so in proportion to this.
    """

    handle: int
    parent: int
    rate_bytes_per_s: float
    ceil_bytes_per_s: float
    prio: int = 0
    quantum_bytes: int = QUANTUM_BYTES


def plain_tree(nic_bytes_per_s: float) -> tuple[HtbClass, HtbClass]:
    """The card's rate for all packets alike."""
    rate = nic_bytes_per_s
    return HtbClass(TRUNK, ROOT, rate, rate), HtbClass(DEFAULT, TRUNK, rate, rate)


def to_kernel(bytes_per_s: float) -> int:
    """A rate as the kernel counts it."""
    return max(1, round(bytes_per_s / DATA_SHARE))


def from_kernel(bytes_per_s: float) -> float:
    """A rate of data."""
    return bytes_per_s * DATA_SHARE


def burst_bytes(rate_bytes_per_s: float) -> int:
    """What may be sent at once after a pause."""
    return max(_MIN_BURST_BYTES, int(rate_bytes_per_s * _BURST_S))


def queue_bytes(rate_bytes_per_s: float) -> int:
    """What may wait at that rate: more is dropped, and bulk flows do not make others wait long."""
    return max(_MIN_QUEUE_BYTES, int(rate_bytes_per_s * _QUEUE_S))


def apply(route: Route, index: int, classes: Iterable[HtbClass]) -> None:
    """Give an interface a tree of classes, instead of whatever it has. Waiting packets are lost.

    Args:
        route: Of the namespace that the interface is in.
        index: Number of the interface.
        classes: Parents before children, `TRUNK` and `DEFAULT` among them.
    """
    clear(route, index)
    route.tc("add", "htb", index, ROOT, default=DEFAULT & 0xFFFF)
    for each in classes:
        add(route, index, each)


def add(route: Route, index: int, new: HtbClass) -> None:
    """Add a class; if it is not the trunk, with a queue of its own."""
    _tell(route, "add-class", index, new)
    if new.handle != TRUNK:
        _add_queue(route, index, new)


def change(route: Route, index: int, changed: HtbClass) -> None:
    """Change the rates of a class, while packets flow.

    A new `prio` does not take effect as long as packets wait: change rates instead.
    """
    _tell(route, "change-class", index, changed)


def remove(route: Route, index: int, handle: int) -> None:
    """Remove a class and its queue; filters that send packets there must be gone."""
    route.tc("del-class", "htb", index, handle)


def clear(route: Route, index: int) -> None:
    """Take the whole tree away, with its filters; fine if there is none."""
    with suppress(_netlink_error()):
        route.tc("del", index=index, handle=0, root=True)


def is_shaped(route: Route, index: int) -> bool:
    """Whether an interface has a tree of this module, or one with the same root."""
    return any(
        each["handle"] == ROOT and each.get_attr("TCA_KIND") == "htb"
        for each in route.tc("dump", index=index)
        if each["index"] == index
    )


def classes_of(route: Route, index: int) -> tuple[HtbClass, ...]:
    """All classes that an interface has now, parents before children."""
    found = [_read(each) for each in route.tc("get-class", index=index) if each["index"] == index]
    return tuple(sorted(found, key=lambda each: (each.parent != ROOT, each.handle)))


def scale(route: Route, index: int, nic_bytes_per_s: float) -> None:
    """Change the trunk's rate while packets flow, and all others in proportion.

    A class has its rate even if its parent has less, so that the trunk alone would limit nobody.

    Raises:
        LookupError: The interface has no such tree.
    """
    classes = classes_of(route, index)
    if not classes or classes[0].handle != TRUNK:
        raise LookupError(f"interface {index}")
    factor = nic_bytes_per_s / classes[0].rate_bytes_per_s
    for each in classes:
        rate, ceil = each.rate_bytes_per_s * factor, each.ceil_bytes_per_s * factor
        change(route, index, replace(each, rate_bytes_per_s=rate, ceil_bytes_per_s=ceil))
        if each.handle != TRUNK:
            with suppress(_netlink_error()):  # queues that measure time have no size to change
                _tell_queue(route, "change", index, each.handle, ceil)


def number_of(route: Route, interface: str) -> int:
    """Number of an interface.

    Raises:
        LookupError: There is none of that name.
    """
    found = route.link_lookup(ifname=interface)
    if not found:
        raise LookupError(interface)
    return int(found[0])


@contextmanager
def open_route(namespace: str | None = None) -> Iterator[Any]:
    """Speak to the kernel about a network namespace; about this process' one if none is named.

    What it yields is for the thread that has opened it.

    Raises:
        MissingExtraError: pyroute2 is not installed.
        OSError: There is no such namespace, or it may not be entered.
    """
    check_pyroute2()
    from pyroute2 import IPRoute

    with nullcontext() if namespace is None else _inside(namespace):
        route = IPRoute()
    with route:
        yield route


@contextmanager
def _inside(namespace: str) -> Iterator[None]:
    """Let this thread be in another network.

    pyroute2 would fork to do so, which a process with threads should not.
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
    """Refuse early without pyroute2.

    Raises:
        MissingExtraError: It is not installed.
    """
    from importlib.util import find_spec

    if find_spec("pyroute2") is None:
        raise MissingExtraError(
            "bandwidth is limited through pyroute2, which is not installed",
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


def _tell(route: Route, command: str, index: int, told: HtbClass) -> None:
    rate, ceil = to_kernel(told.rate_bytes_per_s), to_kernel(told.ceil_bytes_per_s)
    route.tc(
        command,
        "htb",
        index,
        told.handle,
        parent=told.parent,
        rate=rate,
        ceil=ceil,
        prio=told.prio,
        quantum=told.quantum_bytes,
        burst=burst_bytes(rate),
        cburst=burst_bytes(ceil),
    )


def _add_queue(route: Route, index: int, owner: HtbClass) -> None:
    """Queue fairly where the kernel can, else in order; what is too much is dropped."""
    try:
        route.tc("add", "fq_codel", index, _queue_of(owner.handle), parent=owner.handle)
    except _netlink_error():
        _tell_queue(route, "add", index, owner.handle, owner.ceil_bytes_per_s)


def _tell_queue(route: Route, command: str, index: int, owner: int, ceil: float) -> None:
    from pyroute2.netlink.rtnl.tcmsg import plugins

    # Its options are those of pfifo, but pyroute2 knows only that one.
    plugins.setdefault("bfifo", plugins["pfifo"])
    route.tc(command, "bfifo", index, _queue_of(owner), parent=owner, limit=queue_bytes(ceil))


def _queue_of(handle: int) -> int:
    return (handle & 0xFFFF) << 16
