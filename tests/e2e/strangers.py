"""What somebody without credentials gets from a port, tried with bare sockets.

Runs on an emulated machine: it reads targets as JSON from its input and prints what it got.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

PATIENCE_S = 20.0
UNIMPLEMENTED, UNAUTHENTICATED = 12, 16
UNANSWERED = -1
HEALTH = "/grpc.health.v1.Health/Check"
REQUESTS = ("GET /", "GET /metrics", "GET /api/jobs/", "POST /get_runtime_envs_info")

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_ACK = _END_STREAM = 1
_END_HEADERS = 4
# Answers may refer to headers of earlier ones, unless they are given no table to keep them in.
_NO_TABLE = struct.pack(">HI", 1, 0)
_STATUS = re.compile(rb"grpc-status.([0-9]+)", re.DOTALL)
_METHOD = re.compile(rb"/ray\.rpc\.[A-Za-z.]+/[A-Za-z]+(?=\0)")


def grpc(host: str, port: int, methods: Iterable[str]) -> dict[str, int]:
    """Status of each call, which carries an empty message; -1 where the connection ended."""
    statuses: dict[str, int] = {}
    with suppress(OSError), socket.create_connection((host, port), PATIENCE_S) as link:
        link.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, _NO_TABLE))
        for i, method in enumerate(methods):
            statuses[method] = UNANSWERED
            link.sendall(_call(method, host, 2 * i + 1))
            statuses[method] = _status(link, 2 * i + 1)
    return statuses


def _status(link: socket.socket, stream: int) -> int:
    """How one call went."""
    while True:
        head = _exactly(link, 9)
        kind, flags, number = struct.unpack(">BBI", head[3:])
        payload = _exactly(link, int.from_bytes(head[:3], "big"))
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            link.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _GOAWAY or (kind == _RESET and number == stream):
            return UNANSWERED
        elif kind == _HEADERS and number == stream and flags & _END_STREAM:
            found = _STATUS.search(payload)
            return int(found[1]) if found else UNANSWERED


def _call(method: str, host: str, stream: int) -> bytes:
    headers = {
        ":method": "POST",
        ":scheme": "http",
        ":path": method,
        ":authority": host,
        "te": "trailers",
        "content-type": "application/grpc",
        # Without it one call (RaySyncer/StartSync) ends Ray's process before any token counts;
        # docs/explanation/security.md says so.
        "node_id": "ab" * 28,
    }
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    nothing = _frame(_DATA, _END_STREAM, stream, bytes(5))
    return _frame(_HEADERS, _END_HEADERS, stream, block) + nothing


def _text(text: str) -> bytes:
    """As headers are written; no text here is longer than one byte can say."""
    assert len(text) < 127
    return bytes([len(text)]) + text.encode()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _exactly(link: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        more = link.recv(num_bytes - len(data))
        if not more:
            raise ConnectionError
        data += more
    return data


def http(host: str, port: int) -> dict[str, int]:
    """Status of each request; 0 if the other side speaks no HTTP."""
    statuses = {}
    for request in REQUESTS:
        text = f"{request} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close"
        found = re.match(rb"HTTP/1\.[01] (\d{3})", _said(host, port, f"{text}\r\n\r\n".encode()))
        statuses[request] = int(found[1]) if found else 0
    return statuses


def tls(host: str, port: int) -> dict[str, str]:
    """What comes back, in hexadecimal, without TLS and with TLS but without a certificate."""
    token = b"A" * 43
    call = struct.pack("<I", len(token)) + token
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return {
        "plain": _said(host, port, call).hex(),
        "without a certificate": _said(host, port, call, context).hex(),
    }


def _said(host: str, port: int, words: bytes, context: ssl.SSLContext | None = None) -> bytes:
    said = b""
    with ExitStack() as opened, suppress(OSError):
        link = opened.enter_context(socket.create_connection((host, port), PATIENCE_S))
        if context is not None:
            link = opened.enter_context(context.wrap_socket(link, server_hostname=host))
        link.sendall(words)
        while more := link.recv(1 << 16):
            said += more
    return said


def ray_methods() -> list[str]:
    """All calls that Ray's programs know, as paths; not all of them are in its Python files."""
    import ray

    programs = Path(ray.__file__).parent / "core" / "src" / "ray"
    files = (programs / "gcs" / "gcs_server", programs / "raylet" / "raylet")
    found = {match.decode() for file in files for match in _METHOD.findall(file.read_bytes())}
    return [*sorted(found), HEALTH]


def probe(target: Mapping[str, Any]) -> dict[str, Any]:
    """Try one target as its `protocol` says."""
    host, port = target["host"], target["port"]
    if target["protocol"] == "ray":
        return {"http": http(host, port), "grpc": grpc(host, port, target["methods"])}
    return {"tls": tls(host, port)}


if __name__ == "__main__":
    json.dump([probe(target) for target in json.load(sys.stdin)], sys.stdout)
