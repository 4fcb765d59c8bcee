"""Fast netlink requests for traffic classes and TCP connections, without pyroute2.

pyroute2 takes more than a millisecond to change a class or to read its counters; a bare netlink
message takes some microseconds. One-time operations use `linux/htb.py`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from headrace.linux.htb import ROOT, TRUNK, HtbClass, burst_bytes, from_kernel, to_kernel

_ERROR, _DONE = 2, 3
_NEW_CLASS, _GET_CLASS = 40, 42
_REQUEST, _DUMP = 0x1, 0x300
_BY_FAMILY = 20  # of sockets
_ESTABLISHED = 1
_KIND, _OPTIONS, _STATS = 1, 2, 3
_PARMS, _RATE64, _CEIL64 = 1, 6, 7
_ETHERNET = 1
_TICK_NS = 64
_MOST_32 = 0xFFFFFFFF

_HEADER = struct.Struct("=IHHII")
_CLASS = struct.Struct("=BxxxiIII")
_ATTRIBUTE = struct.Struct("=HH")
_COUNTERS = struct.Struct("=Q20xII")  # `struct tc_stats`: bytes, queued packets, queued bytes
# `struct tc_htb_opt`: two rates, two bursts in ticks, quantum, level, prio.
_HTB = struct.Struct("=xBHhHI xBHhHI IIIII".replace(" ", ""))
_LONG = struct.Struct("=HHQ")
_SOCKET_REQUEST = struct.Struct("=BBBxI48x")
# `struct inet_diag_msg`: ports, addresses, and at its end the socket's inode.
_SOCKET = struct.Struct("!4xHH16s16s")
_INODE_AT = 68
_READ_BYTES = 1 << 18
_MAPPED = b"\0" * 10 + b"\xff\xff"


@dataclass(frozen=True)
class Counters:
    """Counters of a class: bytes sent since its creation, with headers, and bytes queued."""

    sent_bytes: int
    waiting_bytes: int


@dataclass(frozen=True)
class Connection:
    """An established TCP connection with another machine."""

    local: tuple[str, int]
    peer: tuple[str, int]
    inode: int


class Netlink:
    """A netlink socket for synchronous requests."""

    def __init__(self, protocol: int) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol)
        self._socket.bind((0, 0))
        self._socket.settimeout(2.0)
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def dump(self, kind: int, body: bytes) -> Iterator[tuple[bytes, int, int]]:
        """Request a list; yields a buffer, and begin and end of each item's body in it."""
        self._number += 1
        size = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(size, kind, _REQUEST | _DUMP, self._number, 0) + body)
        while True:
            data = self._socket.recv(_READ_BYTES)
            at = 0
            while at + _HEADER.size <= len(data):
                length, answer, _, number, _ = _HEADER.unpack_from(data, at)
                if length < _HEADER.size:
                    return
                if number == self._number:
                    if answer == _DONE:
                        return
                    if answer == _ERROR:
                        (code,) = struct.unpack_from("=i", data, at + _HEADER.size)
                        raise OSError(-code, "netlink request failed")
                    yield data, at + _HEADER.size, at + length
                at += (length + 3) & ~3

    def send_requests(self, messages: Iterable[bytes], kind: int) -> None:
        """Send requests that are answered only on errors."""
        whole = []
        for body in messages:
            self._number += 1
            size = _HEADER.size + len(body)
            whole.append(_HEADER.pack(size, kind, _REQUEST, self._number, 0) + body)
        if whole:
            self._socket.send(b"".join(whole))


class Classes(Netlink):
    """Bandwidth classes of one interface.

    Attributes:
        trunk_bytes_per_s: Rate of the trunk at the last call of `counters`.
    """

    def __init__(self, index: int) -> None:
        super().__init__(socket.NETLINK_ROUTE)
        self._index = index
        self.trunk_bytes_per_s = 0.0
        self._ask = _CLASS.pack(0, index, 0, ROOT, 0)
        self._stats_at: dict[int, int] = {}

    def counters(self) -> dict[int, Counters]:
        """Counters of all classes, by handle."""
        found = {}
        for data, begin, end in self.dump(_GET_CLASS, self._ask):
            _, index, handle, _, _ = _CLASS.unpack_from(data, begin)
            if index != self._index:
                continue
            # Messages of one length have the same layout, so the offset is cached.
            offset = self._stats_at.get(end - begin)
            if offset is None:
                offset = _find(data, begin + _CLASS.size, end, _STATS) - begin
                self._stats_at[end - begin] = offset
            if handle == TRUNK:
                self.trunk_bytes_per_s = from_kernel(_rate(data, begin + _CLASS.size, end))
            sent, _, waiting = _COUNTERS.unpack_from(data, begin + offset)
            found[handle] = Counters(sent, waiting)
        return found

    def change(self, classes: Iterable[HtbClass]) -> None:
        """Change existing classes while traffic flows."""
        self.send_requests((class_message(self._index, each) for each in classes), _NEW_CLASS)


def class_message(index: int, changed: HtbClass) -> bytes:
    """Body of a netlink message that changes a class."""
    rate = max(1000, to_kernel(changed.rate_bytes_per_s))
    ceil = max(rate, to_kernel(changed.ceil_bytes_per_s))
    options = _HTB.pack(
        *(_ETHERNET, 0, 0, 0, min(rate, _MOST_32)),
        *(_ETHERNET, 0, 0, 0, min(ceil, _MOST_32)),
        *(_ticks(rate), _ticks(ceil)),
        *(changed.quantum_bytes, 0, changed.prio),
    )
    inner = (
        _attribute(_PARMS, options)
        + _LONG.pack(_LONG.size, _RATE64, rate)
        + _LONG.pack(_LONG.size, _CEIL64, ceil)
    )
    head = _CLASS.pack(0, index, changed.handle, changed.parent, 0)
    return head + _attribute(_KIND, b"htb\0") + _attribute(_OPTIONS, inner)


def _ticks(rate: int) -> int:
    """Duration of a burst, in ticks."""
    return min(round(burst_bytes(rate) / rate * 1e9 / _TICK_NS), _MOST_32)


def _attribute(kind: int, data: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind) + data + b"\0" * (-len(data) % 4)


def _find(data: bytes, begin: int, end: int, wanted: int) -> int:
    """Offset of an attribute's data; raises `LookupError` if there is none of that kind."""
    while begin + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, begin)
        if kind == wanted:
            return begin + _ATTRIBUTE.size
        begin += max((length + 3) & ~3, _ATTRIBUTE.size)
    raise LookupError(wanted)


def _rate(data: bytes, begin: int, end: int) -> int:
    """Rate of a class, from its attributes."""
    options = _find(data, begin, end, _OPTIONS)
    end = options - _ATTRIBUTE.size + _ATTRIBUTE.unpack_from(data, options - _ATTRIBUTE.size)[0]
    with suppress(LookupError):
        (rate,) = struct.unpack_from("=Q", data, _find(data, options, end, _RATE64))
        return int(rate)
    (rate,) = struct.unpack_from("=I", data, _find(data, options, end, _PARMS) + 8)
    return int(rate)


class Sockets(Netlink):
    """All TCP connections of this network namespace."""

    def __init__(self) -> None:
        super().__init__(4)  # NETLINK_SOCK_DIAG, missing in Python's socket module

    def connections(self) -> list[Connection]:
        """Established connections with other machines."""
        found = []
        for family in (socket.AF_INET, socket.AF_INET6):
            request = _SOCKET_REQUEST.pack(family, socket.IPPROTO_TCP, 0, 1 << _ESTABLISHED)
            for data, begin, _ in self.dump(_BY_FAMILY, request):
                port, peer_port, here, there = _SOCKET.unpack_from(data, begin)
                if family == socket.AF_INET6:
                    if not (here.startswith(_MAPPED) and there.startswith(_MAPPED)):
                        continue
                    here, there = here[12:], there[12:]
                if here[:4] == there[:4]:
                    continue
                (inode,) = struct.unpack_from("=I", data, begin + _INODE_AT)
                local = socket.inet_ntoa(here[:4]), port
                found.append(Connection(local, (socket.inet_ntoa(there[:4]), peer_port), inode))
        return found
