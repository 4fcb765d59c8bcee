"""Properties of this machine: network interface, counters, memory, free ports."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import struct
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

_SIOCGIFADDR = 0x8915
_QUIET_PORTS = range(20_000, 32_000)
_TRIES = 20


def interface_of(address: str) -> str | None:
    """Name of the network interface with an IPv4 address, if any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            with suppress(OSError):
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
                if socket.inet_ntoa(answer[20:24]) == address:
                    return name
    return None


def nic_bytes(interface: str) -> tuple[int, int] | None:
    """Bytes received and sent since the interface was created."""
    # Not /sys: in a network namespace it may show the interfaces of another one.
    with suppress(OSError):
        for line in Path("/proc/net/dev").read_text().splitlines():
            name, colon, counters = line.partition(":")
            if colon and name.strip() == interface:
                fields = counters.split()
                return int(fields[0]), int(fields[8])
    return None


def rss_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it has exited."""
    with suppress(OSError, ValueError, IndexError):
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return 0


def free_port(address: str) -> int:
    """A port that is free now, preferably outside Linux's ephemeral range.

    The process that gets it may need half a minute to listen there; ephemeral ports are assigned to
    outgoing connections meanwhile.
    """
    for port in (*(secrets.choice(_QUIET_PORTS) for _ in range(_TRIES)), 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe, suppress(OSError):
            probe.bind((address, port))
            found: int = probe.getsockname()[1]
            return found
    raise OSError(f"no port is free on {address}")


def ready_port(path: Path) -> int | None:
    """Port of a service, from its ready file; None before that exists."""
    try:
        port: int = json.loads(path.read_text(encoding="ascii"))["port"]
    except OSError:
        return None
    return port


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)


TIMEOUT_S = 3.0
"""Allows for two lost packets: TCP resends the first one after 1 s and after 3 s."""

_AT_ONCE = 32


def unreachable(
    places: Mapping[str, tuple[str, int]], timeout_s: float = TIMEOUT_S
) -> dict[str, str]:
    """Connect to each address; returns the unreachable ones with the reason.

    A refused connection counts as reachable: the machine answers.

    Args:
        places: Host and port by name.
        timeout_s: Timeout for each connection.
    """

    def failure_of(place: tuple[str, int]) -> str:
        try:
            socket.create_connection(place, timeout_s).close()
        except ConnectionRefusedError:
            return ""
        except OSError as error:
            return "it does not answer" if isinstance(error, TimeoutError) else str(error.strerror)
        return ""

    if not places:
        return {}
    with ThreadPoolExecutor(min(len(places), _AT_ONCE)) as pool:
        found = dict(zip(places, pool.map(failure_of, places.values()), strict=True))
    return {name: why for name, why in found.items() if why}
