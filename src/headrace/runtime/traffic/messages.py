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
from typing import Annotated, Any

from pydantic import Field

from headrace.core.values import Value

MAX_LINE_BYTES = 1 << 22
"""Largest incomplete line; 1,000 connections take 100 KB."""

_HANDSHAKE_BYTES = 4096
_READ_BYTES = 1 << 16

Message = Mapping[str, Any]

Bandwidth = Annotated[float, Field(gt=0)]
IPv4Address = Annotated[str, Field(pattern=r"^\d{1,3}(\.\d{1,3}){3}$")]
Host = Annotated[str, Field(max_length=64)]
Port = Annotated[int, Field(strict=True, ge=0, le=65535)]
Number = Annotated[int, Field(strict=True, ge=0, lt=2**53)]
EndFields = tuple[str, Host, Port, Host, Port]
"""Task, own address, address of the peer."""


class AgentReport(Value):
    """A message of an agent.

    Attributes:
        nic_out: Bandwidth of its NIC; the first message.
        nic: Changed bandwidth.
        ends: Opened connections of its tasks.
        gone: Closed ones.
        at: Iterations of tasks.
        open: Open flows, and bytes sent since each opened.
        used: CPU time and counters.
        problem: Why it cannot control the NIC.
    """

    nic_out: Bandwidth | None = None
    nic: Bandwidth | None = None
    ends: tuple[EndFields, ...] = ()
    gone: tuple[EndFields, ...] = ()
    at: Mapping[str, Number] = Field(default_factory=dict)
    open: tuple[tuple[Number, Annotated[float, Field(ge=0)]], ...] | None = None
    used: Mapping[str, float] | None = None
    problem: str | None = None


class AgentOrder(Value):
    """A message of the controller.

    Attributes:
        add: Flow, priority, own port, and host and port of the peer of connections to classify.
        remove: Own port, and host and port of the peer of closed ones.
        shares: Flow, rate, ceil and quantum of classes.
        bye: Whether to restore the NIC and end.
    """

    add: tuple[tuple[Number, Number, Port, IPv4Address, Port], ...] = ()
    remove: tuple[tuple[Port, IPv4Address, Port], ...] = ()
    shares: tuple[tuple[Number, Number, Number, Number], ...] = ()
    bye: bool = False


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
        except (ValueError, RecursionError):
            raise EOFError from None
        if not all(isinstance(each, dict) for each in received):
            raise EOFError
        return received

    def receive_handshake(self) -> dict[str, Any] | None:
        """Receive a message of the handshake; None if it is not complete yet.

        Raises `EOFError` if other data follows it.
        """
        received = self.receive(_HANDSHAKE_BYTES)
        if len(received) > 1 or (received and self._partial):
            raise EOFError
        return received[0] if received else None

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()


def register(line: Line, token: bytes, machine: str) -> None:
    """Agent's side of the handshake, on a socket that blocks.

    Raises `EOFError` if the peer lacks the token.
    """
    nonce = secrets.token_hex(16)
    challenge = _await(line).get("nonce")
    if not isinstance(challenge, str):
        raise EOFError
    line.send({"machine": machine, "nonce": nonce, "proof": _proof(token, "agent", challenge)})
    if not _is_proof(_await(line).get("proof"), token, "controller", nonce):
        raise EOFError


def _await(line: Line) -> dict[str, Any]:
    while True:
        message = line.receive_handshake()
        if message is not None:
            return message


class Authenticator:
    """Controller's side of the handshake, on a socket that does not block."""

    def __init__(self, line: Line, token: bytes) -> None:
        self._line, self._token = line, token
        self._nonce = secrets.token_hex(16)
        line.send({"nonce": self._nonce})

    def receive(self) -> str | None:
        """Receive a part of the agent's answer; returns its machine once it is authenticated.

        Raises `EOFError` if the peer lacks the token, `OSError` if it has disconnected.
        """
        received = self._line.receive_handshake()
        if received is None:
            return None
        machine, challenge = received.get("machine"), received.get("nonce")
        if not _is_proof(received.get("proof"), self._token, "agent", self._nonce):
            raise EOFError
        if not isinstance(machine, str) or not isinstance(challenge, str):
            raise EOFError
        self._line.send({"proof": _proof(self._token, "controller", challenge)})
        return machine


def _proof(token: bytes, role: str, nonce: str) -> str:
    # JSON may have surrogates, which UTF-8 has not.
    message = f"{role} {nonce}".encode(errors="backslashreplace")
    return hmac.new(token, message, hashlib.sha256).hexdigest()


def _is_proof(given: object, token: bytes, role: str, nonce: str) -> bool:
    # Texts are compared only if they are ASCII.
    is_text = isinstance(given, str) and given.isascii()
    return is_text and hmac.compare_digest(str(given), _proof(token, role, nonce))
