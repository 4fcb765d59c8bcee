"""Messages from a trainer process to its task actor: Unix datagrams with JSON.

Datagrams need no connection and are never partial, so either side may exit without affecting the
other.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.core.errors import SpecError
from headrace.runtime.protocol.run_context import RunContext

_MAX_BYTES = 1 << 16
_MAX_QUEUED = 10_000
_SEND_TIMEOUT_S = 20.0
_POLL_INTERVAL_S = 0.1


class Inbox:
    """Receives messages of a trainer on a new socket.

    Linux queues about ten datagrams before the sender blocks, so a thread receives them at once.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._arrived: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="receive messages", daemon=True)
        self._thread.start()

    def receive(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """Yield all queued messages, or the first that arrives before the timeout."""
        with self._changed:
            # The thread may not have received the last messages of a sender that just exited.
            self._drain()
            self._changed.wait_for(lambda: self._arrived, timeout_s)
            arrived = tuple(self._arrived)
            self._arrived.clear()
        for data in arrived:
            with suppress(ValueError):
                message = json.loads(data)
                if isinstance(message, dict):
                    yield message

    def close(self) -> None:
        """Stop receiving."""
        self._closed.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while not self._closed.is_set():
            if len(self._arrived) >= _MAX_QUEUED:
                self._closed.wait(_POLL_INTERVAL_S)
            elif select.select([self._socket], [], [], _POLL_INTERVAL_S)[0]:
                with self._changed:
                    self._drain()
                    self._changed.notify_all()

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            while len(self._arrived) < _MAX_QUEUED:
                self._arrived.append(self._socket.recv(_MAX_BYTES))


def send(path: Path, message: Mapping[str, Any]) -> None:
    """Send a message to the run; no error if it has ended."""
    data = json.dumps(message).encode()
    if len(data) > _MAX_BYTES:
        raise SpecError(
            f"metrics of {len(data)} bytes were reported",
            f"report at most {_MAX_BYTES} bytes",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outbox, suppress(OSError):
        outbox.settimeout(_SEND_TIMEOUT_S)
        outbox.sendto(data, os.fspath(path))


def send_waiting(run: RunContext, name: str, waits: bool) -> None:
    """Notify the run that the trainer waits for a task, or no longer does: kind `waits`."""
    send(run.messages, {"kind": "waits", "for": name, "waits": waits})


def notify_failover(run: RunContext, text: str) -> None:
    """Notify the run of a failover: `{"kind": "healing", "text": ...}`."""
    send(run.messages, {"kind": "healing", "text": text})


def send_note(run: RunContext, text: str) -> None:
    """Send a note for the user: `{"kind": "note", "text": ...}`."""
    send(run.messages, {"kind": "note", "text": text})


def line_of(figures: Mapping[str, Any]) -> str:
    """Format metrics for display: `epoch 3  loss 0.1234  accuracy 0.79`."""
    return "  ".join(f"{name} {_formatted(value)}" for name, value in figures.items())


def _formatted(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


ASKED = {"kind": "asked"}
"""Sent by a loader when a script starts to iterate over it."""
