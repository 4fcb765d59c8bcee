"""Figures on their way from a script to whoever shows them: datagrams on one machine.

A datagram needs no connection and is never half: whoever dies on either side, the other goes on.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, SupportsFloat

from headrace.core.errors import SpecError
from headrace.runtime.context import current_run

_MAX_BYTES = 1 << 16
_PATIENCE_S = 1.0
_PLAIN = (bool, int, float, str)


class Inbox:
    """Takes messages of a run's trainer.

    Args:
        path: Of the socket; must not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def receive(self, timeout_s: float) -> Iterator[dict[str, Any]]:
        """All messages that are there, or the first that comes within some time."""
        self._socket.settimeout(timeout_s)
        while True:
            try:
                data = self._socket.recv(_MAX_BYTES)
            except (TimeoutError, BlockingIOError):
                return
            self._socket.settimeout(0)
            with suppress(ValueError):
                message = json.loads(data)
                if isinstance(message, dict):
                    yield message

    def close(self) -> None:
        """Take no more."""
        self._socket.close()


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


def report(**figures: SupportsFloat | str) -> None:
    """Show figures of a training script: under `headrace run` in its display, else as a line.

    Args:
        **figures: By name; `epoch`, `loss` and `accuracy` have a place of their own. Tensors of
            one number are fine.

    Raises:
        SpecError: A figure is neither a number nor a text.
    """
    plain = {name: _plain(name, value) for name, value in figures.items()}
    run = current_run()
    if run is None:
        sys.stdout.write(line_of(plain) + "\n")
        sys.stdout.flush()
        return
    send(run.messages, {"kind": "report", "figures": plain})


def line_of(figures: Mapping[str, Any]) -> str:
    """Figures as people read them: `epoch 3  loss 0.1234  accuracy 0.79`."""
    return "  ".join(f"{name} {_written(value)}" for name, value in figures.items())


def _written(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(name: str, value: Any) -> Any:
    """What JSON knows: a number of numpy or torch is taken out of its box."""
    if not isinstance(value, _PLAIN) and hasattr(value, "item"):
        with suppress(ValueError, RuntimeError, TypeError):
            value = value.item()
    if not isinstance(value, _PLAIN):
        raise SpecError(
            f"{name} was reported as {type(value).__name__}", "report a number or a text"
        )
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
