"""Find and close the TCP connections of this process, including those of libraries.

gRPC does not expose its sockets, but they are in `/proc/self/fd`. Systems without it yield none.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

Peer = tuple[str, int]
"""Address and port."""

_DESCRIPTORS = "/proc/self/fd"

# Offset of `tcpi_bytes_received` in Linux's `struct tcp_info`, since version 4.1.
_RECEIVED_AT = 128
_TCP_INFO_BYTES = 136


def connections() -> Iterator[tuple[Peer, Peer, socket.socket]]:
    """Local and remote address of every connection, and its socket, closed before the next one."""
    if not os.path.isdir(_DESCRIPTORS):
        return
    for name in os.listdir(_DESCRIPTORS):
        try:
            # A duplicate stays valid if the original is closed meanwhile.
            own = os.dup(int(name))
        except OSError:
            continue
        try:
            sock = socket.socket(fileno=own)
        except OSError:
            os.close(own)
            continue
        with sock:
            try:
                local, peer = sock.getsockname()[:2], sock.getpeername()[:2]
            except OSError:
                continue
            if len(local) == len(peer) == 2:
                yield (plain_host(local[0]), local[1]), (plain_host(peer[0]), peer[1]), sock


def plain_host(host: str) -> str:
    """Normalize an IP address; other strings are returned as they are."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def received_bytes(sock: socket.socket) -> int:
    """Bytes received by the kernel; 0 if unknown."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except (OSError, AttributeError):
        return 0
    if len(info) < _TCP_INFO_BYTES:
        return 0
    (received,) = struct.unpack_from("<Q", info, _RECEIVED_AT)
    return int(received)


def cut(sock: socket.socket) -> None:
    """Shut a connection down for all its users."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def addresses_of(host: str, port: int) -> frozenset[Peer]:
    """Addresses of a host's connections; empty if it cannot be resolved."""
    with suppress(OSError):
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return frozenset((plain_host(str(address[0])), port) for *_, address in found)
    return frozenset()
