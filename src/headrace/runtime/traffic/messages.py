"""Connection of agents and controller: JSON lines after mutual authentication.

The shared token is never sent: each side answers a nonce of the other with an HMAC.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any

MAX_LINE_BYTES = 1 << 22
"""Largest incomplete line; 1,000 connections take 100 KB."""

_HANDSHAKE_BYTES = 4096
_READ_BYTES = 1 << 16

Message = Mapping[str, Any]


class Line:
    """One side of a connection; its socket blocks until both sides are authenticated."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._partial = b""

    def fileno(self) -> int:
        """File descriptor, for selectors."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message; raises `OSError` if the peer disconnected or does not receive."""
        self._socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self, max_bytes: int = MAX_LINE_BYTES) -> list[dict[str, Any]]:
        """Receive all complete messages; blocks for the next bytes, not for a complete line.

        Raises `EOFError` if the peer disconnected or sent invalid data.
        """
        data = self._socket.recv(_READ_BYTES)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if not data or len(self._partial) > max_bytes:
            raise EOFError
        try:
            received = [json.loads(line) for line in lines]
        except ValueError:
            raise EOFError from None
        if not all(isinstance(each, dict) for each in received):
            raise EOFError
        return received

    def receive_one(self) -> dict[str, Any]:
        """Receive one message; raises `EOFError` if other data follows it."""
        while True:
            received = self.receive(_HANDSHAKE_BYTES)
            if len(received) == 1 and not self._partial:
                return received[0]
            if received:
                raise EOFError

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()


def register(line: Line, token: bytes, machine: str) -> None:
    """Agent's side of the handshake; raises `EOFError` if the peer lacks the token."""
    nonce = secrets.token_hex(16)
    challenge = line.receive_one().get("nonce")
    if not isinstance(challenge, str):
        raise EOFError
    line.send({"machine": machine, "nonce": nonce, "proof": _proof(token, "agent", challenge)})
    if not _is_proof(line.receive_one().get("proof"), token, "controller", nonce):
        raise EOFError


def authenticate(line: Line, token: bytes) -> str:
    """Controller's side of the handshake; returns the agent's machine.

    Raises `EOFError` if the peer lacks the token.
    """
    nonce = secrets.token_hex(16)
    line.send({"nonce": nonce})
    received = line.receive_one()
    machine, challenge = received.get("machine"), received.get("nonce")
    if not _is_proof(received.get("proof"), token, "agent", nonce):
        raise EOFError
    if not isinstance(machine, str) or not isinstance(challenge, str):
        raise EOFError
    line.send({"proof": _proof(token, "controller", challenge)})
    return machine


def _proof(token: bytes, role: str, nonce: str) -> str:
    return hmac.new(token, f"{role} {nonce}".encode(), hashlib.sha256).hexdigest()


def _is_proof(given: object, token: bytes, role: str, nonce: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given, _proof(token, role, nonce))
