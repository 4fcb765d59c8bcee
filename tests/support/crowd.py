"""A crowd of connections that say nothing, as a process on an emulated machine.

    python tests/support/crowd.py HOST PORT COUNT HOLD_S

opens connections as fast as it can, prints `opened`, replaces those that are closed for `HOLD_S`
seconds, and waits until the other side has closed the rest. Standard library only: it starts fast.

    python tests/support/crowd.py HOST PORT TOKEN CERTIFICATES

presents a token, sends half a request and then a byte now and then.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import ssl
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

_LONGEST_S = 100.0


def crowd(host: str, port: int, count: int, hold_s: float) -> dict[str, Any]:
    """Open connections, replace those that are closed early; returns how long each lived."""
    end_s = 0.0
    opened: dict[int, tuple[socket.socket, float]] = {}
    poll = select.epoll()
    lives_s: list[float] = []
    num_opened = num_failed = 0

    def close_ended(wait_s: float) -> None:
        for number, _ in poll.poll(wait_s):
            sock, began_s = opened[number]
            data = b""
            with suppress(OSError):
                data = sock.recv(4096, socket.MSG_DONTWAIT)
            if not data:
                lives_s.append(time.monotonic() - began_s)
                poll.unregister(number)
                del opened[number]
                sock.close()

    while not end_s or time.monotonic() < end_s:
        if num_opened < count or len(opened) < count:
            try:
                sock = socket.create_connection((host, port), 5)
            except OSError:
                num_failed += 1
                time.sleep(0.01)
                continue
            num_opened += 1
            opened[sock.fileno()] = (sock, time.monotonic())
            poll.register(sock, select.EPOLLIN | select.EPOLLRDHUP)
            if num_opened == count:
                print("opened", flush=True)
                end_s = time.monotonic() + hold_s
            if end_s:
                time.sleep(0.005)
        if num_opened % 20 == 0 or end_s:
            close_ended(0)
    last_s = time.monotonic() + _LONGEST_S
    while opened and time.monotonic() < last_s:
        close_ended(0.5)
    return {"opened": num_opened, "failed": num_failed, "left": len(opened), "lives_s": lives_s}


def trickle(host: str, port: int, token: bytes, identity: Path) -> float:
    """Seconds until a connection is closed whose request does not become complete."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(identity / "authority.pem")
    context.load_cert_chain(identity / "client.pem")
    length = struct.Struct("<I")
    with (
        socket.create_connection((host, port), 60) as plain,
        context.wrap_socket(plain, server_hostname=host) as sock,
    ):
        sock.sendall(length.pack(len(token)) + token)
        sock.recv(8)
        began_s = time.monotonic()
        sock.sendall(length.pack(1000))
        sock.settimeout(0.2)
        with suppress(ConnectionError, ssl.SSLError):
            while time.monotonic() < began_s + _LONGEST_S:
                sock.sendall(b"x")
                with suppress(TimeoutError):
                    if not sock.recv(1):
                        break
        return time.monotonic() - began_s


def main() -> None:
    """Run a crowd, or a slow connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    host, port, first, second = sys.argv[1:]
    if first.isdigit():
        print(json.dumps(crowd(host, int(port), int(first), float(second))))
    else:
        print(json.dumps(trickle(host, int(port), Path(first).read_bytes(), Path(second))))


if __name__ == "__main__":
    main()
