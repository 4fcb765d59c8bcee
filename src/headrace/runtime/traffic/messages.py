"""What agents and the controller say to each other: lines of JSON, after both have shown a token.

The token itself is never sent: each side proves that it has it for a number that the other drew.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Mapping
from typing import Any

MOST_BYTES = 1 << 22
"""Of what may wait for the end of its line; a thousand connections have 100 KB."""

_GREETING_BYTES = 4096
_READ_BYTES = 1 << 16

Said = Mapping[str, Any]


class Line:
    """One side of a connection.

    Args:
        sock: Connected, and blocking until both sides know each other.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._half = b""

    def fileno(self) -> int:
        """For selectors."""
        return self._socket.fileno()

    def say(self, said: Said) -> None:
        """Send one line.

        Raises:
            OSError: The other side is gone, or takes nothing.
        """
        self._socket.sendall(json.dumps(said, separators=(",", ":")).encode() + b"\n")

    def hear(self, most_bytes: int = MOST_BYTES) -> list[dict[str, Any]]:
        """All lines that have come; wait for the next bytes, but not for a whole line.

        Raises:
            EOFError: The other side is gone, or does not speak like this.
        """
        data = self._socket.recv(_READ_BYTES)
        *lines, self._half = (self._half + data).split(b"\n")
        if not data or len(self._half) > most_bytes:
            raise EOFError
        try:
            heard = [json.loads(line) for line in lines]
        except ValueError:
            raise EOFError from None
        if not all(isinstance(each, dict) for each in heard):
            raise EOFError
        return heard

    def hear_one(self) -> dict[str, Any]:
        """The next line, when nothing else is on its way.

        Raises:
            EOFError: Something else came.
        """
        while True:
            heard = self.hear(_GREETING_BYTES)
            if len(heard) == 1 and not self._half:
                return heard[0]
            if heard:
                raise EOFError

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def register(line: Line, token: bytes, machine: str) -> None:
    """An agent's side of the beginning.

    Raises:
        EOFError: The other side does not have the token.
    """
    nonce = secrets.token_hex(16)
    asked = line.hear_one().get("nonce")
    if not isinstance(asked, str):
        raise EOFError
    line.say({"machine": machine, "nonce": nonce, "proof": _proof(token, "agent", asked)})
    if not _is_proof(line.hear_one().get("proof"), token, "controller", nonce):
        raise EOFError


def welcome(line: Line, token: bytes) -> str:
    """The controller's side of the beginning; the machine that the agent is on.

    Raises:
        EOFError: The other side does not have the token.
    """
    nonce = secrets.token_hex(16)
    line.say({"nonce": nonce})
    heard = line.hear_one()
    machine, asked = heard.get("machine"), heard.get("nonce")
    if not _is_proof(heard.get("proof"), token, "agent", nonce):
        raise EOFError
    if not isinstance(machine, str) or not isinstance(asked, str):
        raise EOFError
    line.say({"proof": _proof(token, "controller", asked)})
    return machine


def _proof(token: bytes, who: str, nonce: str) -> str:
    return hmac.new(token, f"{who} {nonce}".encode(), hashlib.sha256).hexdigest()


def _is_proof(given: object, token: bytes, who: str, nonce: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given, _proof(token, who, nonce))
