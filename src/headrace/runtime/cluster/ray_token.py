"""Checks the authentication token of a Ray cluster before connecting.

With a wrong token `ray.init` retries for 20 s and then reports that there is no cluster. So one
gRPC call is made directly.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from headrace.core.errors import SpecError

_TIMEOUT_S = 15.0
_MAX_BYTES = 1 << 16
_UNAUTHENTICATED = b"16"
REMEDY = (
    "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to the file with its token "
    "(`headrace testbed exec` does so)"
)
"""Remedy for a missing or wrong token."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4
_STATUS = re.compile(rb"grpc-status.(\d+)", re.DOTALL)


def check_token(host: str, port: int, environment: Mapping[str, str] = os.environ) -> None:
    """Check that Ray's token is accepted; passes if this cannot be determined, e.g. with TLS.

    Raises:
        SpecError: The token is missing or rejected.
    """
    if not _is_refused(host, port, None):
        return
    cluster = f"the Ray cluster at {host}:{port}"
    mode = environment.get("RAY_AUTH_MODE", "").lower()
    if mode != "token":
        is_now = f"RAY_AUTH_MODE is {mode!r}" if mode else "RAY_AUTH_MODE is not set"
        raise SpecError(f"{cluster} requires a token, and {is_now}", REMEDY)
    token, where = _find(environment)
    if not token:
        raise SpecError(f"{cluster} requires a token, and there is none in {where}", REMEDY)
    if _is_refused(host, port, token):
        raise SpecError(f"{cluster} rejects the token in {where}", REMEDY)


def _find(environment: Mapping[str, str]) -> tuple[bytes, str]:
    """The token that Ray would use, and its source."""
    if given := environment.get("RAY_AUTH_TOKEN", "").strip():
        return given.encode(), "RAY_AUTH_TOKEN"
    named = environment.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        return path.read_bytes().strip(), str(path)
    except OSError as error:
        return b"", f"{path} ({error.strerror})"


def _is_refused(host: str, port: int, token: bytes | None) -> bool:
    """Whether Ray's head rejects a call; False if the response is not understood."""
    headers = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": b"/ray.rpc.NodeInfoGcsService/GetClusterId",
        b":authority": host.encode(),
        b"te": b"trailers",
        b"content-type": b"application/grpc",
    }
    if token is not None:
        headers[b"authorization"] = b"Bearer " + token
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers.items())
    empty_message = bytes(5)
    body = _frame(_HEADERS, _END_HEADERS, 1, block) + _frame(_DATA, _END_STREAM, 1, empty_message)
    response = b""
    with suppress(OSError), socket.create_connection((host, port), _TIMEOUT_S) as link:
        link.sendall(_PREFACE + _frame(_SETTINGS, 0, 0, b"") + body)
        while len(response) < _MAX_BYTES and (more := link.recv(_MAX_BYTES)):
            response += more
            # The first response of a connection has literal headers: the HPACK table is empty.
            if found := _STATUS.search(response):
                return found[1] == _UNAUTHENTICATED
    return False


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(data: bytes) -> bytes:
    """Encode an HPACK string literal: a 7-bit prefix length, then the data."""
    if len(data) < 127:
        return bytes([len(data)]) + data
    rest, head = len(data) - 127, b"\x7f"
    while rest >= 128:
        head, rest = head + bytes([rest % 128 + 128]), rest // 128
    return head + bytes([rest]) + data
