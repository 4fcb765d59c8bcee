"""Figures on their way from a script to whoever shows them: datagrams on one machine.

A datagram needs no connection and is never half: whoever dies on either side, the other goes on.
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
_MAX_WAITING = 10_000
_PATIENCE_S = 20.0
_LOOK_S = 0.1
_PLAIN = (bool, int, float, str)


class Inbox:
    """Takes messages of a run's trainer.

    Linux lets about ten datagrams wait, then whoever sends waits: a thread takes them at once, so
    that a script may report more often than somebody asks here.

    Args:
        path: Of the socket; must not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._arrived: deque[bytes] = deque()
        self._news = threading.Condition()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="take messages", daemon=True)
        self._thread.start()

    def receive(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """All messages that are there, or the first that comes within some time."""
        with self._news:
            # Not all that was sent has reached the thread when its sender has just ended.
            self._take()
            self._news.wait_for(lambda: self._arrived, timeout_s)
            arrived = tuple(self._arrived)
            self._arrived.clear()
        for data in arrived:
            with suppress(ValueError):
                message = json.loads(data)
                if isinstance(message, dict):
                    yield message

    def close(self) -> None:
        """Take no more."""
        self._closed.set()
        self._thread.join()
        self._socket.close()

    def _listen(self) -> None:
        while not self._closed.is_set():
            if len(self._arrived) >= _MAX_WAITING:
                self._closed.wait(_LOOK_S)
            elif select.select([self._socket], [], [], _LOOK_S)[0]:
                with self._news:
                    self._take()
                    self._news.notify_all()

    def _take(self) -> None:
        with suppress(BlockingIOError):
            while len(self._arrived) < _MAX_WAITING:
                self._arrived.append(self._socket.recv(_MAX_BYTES))


def send(path: Path, message: Mapping[str, Any]) -> None:
    """Tell the run something; nothing happens if it is gone."""
    data = json.dumps(message).encode()
    if len(data) > _MAX_BYTES:
        raise SpecError(
            f"figures of {len(data)} bytes were reported", f"report less than {_MAX_BYTES}"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outbox, suppress(OSError):
        outbox.settimeout(_PATIENCE_S)
        outbox.sendto(data, os.fspath(path))


def tell_waiting(run: RunContext, name: str, waits: bool) -> None:
    """Tell the run for whom the trainer waits, or that it does no more.

    The message is `{"kind": "waits", "for": "store1 on m1", "waits": true}`.
    """
    send(run.messages, {"kind": "waits", "for": name, "waits": waits})


def notify_failover(run: RunContext, text: str) -> None:
    """Tell the run that something was lost and is mended: `{"kind": "healing", "text": ...}`."""
    send(run.messages, {"kind": "healing", "text": text})


def tell_note(run: RunContext, text: str) -> None:
    """Tell the user something: `{"kind": "note", "text": ...}`."""
    send(run.messages, {"kind": "note", "text": text})


def line_of(figures: Mapping[str, Any]) -> str:
    """Figures as people read them: `epoch 3  loss 0.1234  accuracy 0.79`."""
    return "  ".join(f"{name} {_written(value)}" for name, value in figures.items())


def _written(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


ASKED = {"kind": "asked"}
"""What a loader sends when a script begins to loop over it."""
