"""Calls of Flight that its Python client cannot make, as bytes of HTTP/2."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from headrace.rpc.credentials import Identity
from headrace.rpc.server import TOKEN_HEADER
from tests.integration.store_service.store_process import ServingProcess

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4


def tls_context(process: ServingProcess, own: Identity | None, folder: Path) -> ssl.SSLContext:
    """A client that trusts the run and shows a certificate, or none."""
    trusted = process.authority.issue("anyone").authority.decode()
    context = ssl.create_default_context(cadata=trusted)
    context.set_alpn_protocols(["h2"])
    if own is not None:
        file = folder / "own.pem"
        file.write_bytes(own.certificate + own.key.reveal())
        context.load_cert_chain(file)
    return context


def call(
    process: ServingProcess, name: str, tokens: Sequence[bytes], context: ssl.SSLContext | None
) -> bytes:
    """Everything the other side says, until it says how the call went; nothing if it hangs up."""
    said = b""
    with ExitStack() as opened, suppress(ConnectionError, ssl.SSLError):
        sock = socket.create_connection(("127.0.0.1", process.port), timeout=60)
        opened.enter_context(sock)
        if context is not None:
            sock = opened.enter_context(context.wrap_socket(sock, server_hostname="127.0.0.1"))
        sock.sendall(_request(name, tokens, process))
        while not _is_over(said) and (more := sock.recv(1 << 16)):
            said += more
    return said


def _is_over(said: bytes) -> bool:
    """Whether the last headers of a stream are there."""
    while len(said) >= 9:
        length, kind, flags = int.from_bytes(said[:3]), said[3], said[4]
        if kind == _HEADERS and flags & _END_STREAM:
            return len(said) >= 9 + length
        said = said[9 + length :]
    return False


def _request(name: str, tokens: Sequence[bytes], process: ServingProcess) -> bytes:
    headers = [
        (b":method", b"POST"),
        (b":scheme", b"https" if process.tls else b"http"),
        (b":path", f"/arrow.flight.protocol.FlightService/{name}".encode()),
        (b":authority", f"127.0.0.1:{process.port}".encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *((TOKEN_HEADER.encode(), token) for token in tokens),
    ]
    # Every header by name, none by number, nothing packed.
    block = b"".join(
        b"\0" + bytes([len(key)]) + key + bytes([len(value)]) + value for key, value in headers
    )
    # A FlightDescriptor: a command, "x".
    descriptor = b"\x08\x02\x12\x01x"
    message = b"\0" + struct.pack(">I", len(descriptor)) + descriptor
    return b"".join(
        (
            _PREFACE,
            _frame(_SETTINGS, 0, 0, b""),
            _frame(_HEADERS, _END_HEADERS, 1, block),
            _frame(_DATA, _END_STREAM, 1, message),
        )
    )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload
