"""Who listens on the machines of a testbed, as the kernel tells."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headrace.testbed import Testbed, processes

_TCP_LISTEN = "0A"
_UDP_UNCONNECTED = "07"
_UNIX_ACCEPTS = 0x10000
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True)
class Listener:
    """A socket that others may reach.

    Attributes:
        machine: Where.
        kind: `tcp`, `udp` or `unix`.
        address: On which of the machine's addresses, or the socket's name.
        port: None of a Unix socket has one.
        command: Of the process that has it.
        pids: Of all processes that have it, outside of all namespaces.
    """

    machine: str
    kind: str
    address: str
    port: int
    command: str
    pids: tuple[int, ...]


def listeners_of(bed: Testbed) -> list[Listener]:
    """All of them, on all machines, at this moment."""
    return [listener for host in bed.hosts for listener in _of_machine(bed, host.name)]


def _of_machine(bed: Testbed, name: str) -> Iterator[Listener]:
    init = bed.layout.host(name).init
    assert init is not None
    owners = _owners(init.pid)
    for kind, address, port, inode in _sockets(init.pid):
        pids = tuple(owners.get(inode, ()))
        yield Listener(name, kind, address, port, command_of(pids[0]) if pids else "", pids)


def _sockets(pid: int) -> Iterator[tuple[str, str, int, int]]:
    for table, state in (
        ("tcp", _TCP_LISTEN),
        ("tcp6", _TCP_LISTEN),
        ("udp", _UDP_UNCONNECTED),
        ("udp6", _UDP_UNCONNECTED),
    ):
        for line in _lines(pid, table):
            fields = line.split()
            if fields[3] == state:
                raw, _, port = fields[1].partition(":")
                yield table.rstrip("6"), _address(raw), int(port, 16), int(fields[9])
    for line in _lines(pid, "unix"):
        fields = line.split(maxsplit=7)
        # Names that begin with @ are no files: whoever is on the machine may connect.
        if int(fields[3], 16) & _UNIX_ACCEPTS and len(fields) > 7:
            yield "unix", fields[7], 0, int(fields[6])


def _lines(pid: int, table: str) -> list[str]:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    return []


def _address(raw: str) -> str:
    words = [int(raw[i : i + 8], 16) for i in range(0, len(raw), 8)]
    family = socket.AF_INET if len(words) == 1 else socket.AF_INET6
    return socket.inet_ntop(family, struct.pack(f"={len(words)}I", *words))


def _owners(init: int) -> dict[int, list[int]]:
    """Processes by the sockets that they have, of those in one machine's network."""
    home = processes.namespace_of(init, "net")
    assert home is not None
    found: dict[int, list[int]] = defaultdict(list)
    for _, seen in processes.living_in([home], "net"):
        pid = seen.process.pid
        with suppress(OSError):
            for entry in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    if match := _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{entry}")):
                        found[int(match[1])].append(pid)
    return found


def command_of(pid: int) -> str:
    """How a process was started; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""
