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
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from headrace.core.errors import SpecError
from headrace.runtime.protocol.run_context import RunContext

_MAX_BYTES = 1 << 16
_MAX_QUEUED = 10_000
_SEND_TIMEOUT_S = 20.0
_POLL_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Message:
    """A message of a trainer; each subclass has its `kind` in JSON."""

    kind: ClassVar[str]
    by_kind: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind
        Message.by_kind[kind] = cls


@dataclass(frozen=True)
class Report(Message, kind="report"):
    """The script reported metrics."""

    figures: Mapping[str, Any]


@dataclass(frozen=True)
class BatchRequested(Message, kind="asked"):
    """A script starts to iterate over a loader."""


@dataclass(frozen=True)
class BatchProgress(Message, kind="batches"):
    """Progress of a loader in its epoch.

    Attributes:
        trains: Whether the loader shuffles; the others evaluate.
        batch: Number of the last batch, from 1.
        num_batches: Batches per epoch.
        num_samples: Seeds consumed since `elapsed_s` ago.
        waited_s: Time in which the trainer waited for batches.
        stages: Seconds and counters of the loader's stages.
        steps: Training steps of the run; None if the loader does not train or trace.
    """

    trains: bool
    batch: int
    num_batches: int
    num_samples: int
    elapsed_s: float
    waited_s: float
    stages: Mapping[str, float]
    steps: int | None = None


@dataclass(frozen=True)
class LoopLeft(Message, kind="left"):
    """The script left a loop over a loader early."""


@dataclass(frozen=True)
class NumEpochs(Message, kind="epochs"):
    """The script starts its loop over epochs; `num` is None if it is unlimited."""

    num: int | None


@dataclass(frozen=True)
class BatchSizeRequest(Message, kind="batch_size"):
    """The script has another batch size than the plan."""

    asked: int


@dataclass(frozen=True)
class CheckpointWrite(Message, kind="checkpoint"):
    """A checkpoint was written, or was not because of `problem`.

    Attributes:
        bytes: Size of the file.
        stall_s: Time in which the training loop was stopped.
        agree_s: Time in which all trainers polled whether to stop, since the last checkpoint.
        write_s: Time to write the file, in a thread.
        write_cpu_s: CPU time of that thread.
    """

    iteration: int
    epoch: int | None = None
    batch: int | None = None
    bytes: int | None = None
    problem: str | None = None
    stall_s: float = 0.0
    agree_s: float = 0.0
    write_s: float = 0.0
    write_cpu_s: float = 0.0


@dataclass(frozen=True)
class Resumed(Message, kind="resumed"):
    """A checkpoint was restored.

    Attributes:
        deals_anew: Whether the seed assignment has changed.
        is_over: Whether all epochs were completed before.
    """

    iteration: int
    epoch: int
    batch: int
    deals_anew: bool
    is_over: bool


@dataclass(frozen=True)
class Waiting(Message, kind="waits"):
    """The trainer waits for a task, or no longer does."""

    task: str
    is_waiting: bool


@dataclass(frozen=True)
class Failover(Message, kind="healing"):
    """A sampler is lost; the trainer starts a replacement."""

    text: str


@dataclass(frozen=True)
class Note(Message, kind="note"):
    """A note for the user."""

    text: str


@dataclass(frozen=True)
class ParameterChecksum(Message, kind="parameters"):
    """Checksum and sample of an optimizer's parameters after a step; how many had no gradient."""

    optimizer: int
    step: int
    checksum: int
    values: list[float]
    num_unused: int = 0


@dataclass(frozen=True)
class NonFinite(Message, kind="not finite"):
    """A loss or gradients are not finite; `is_own` if this trainer computed the value."""

    what: str
    step: int | None
    is_own: bool


def encode(message: Message) -> dict[str, Any]:
    """The JSON object of a message; fields that are None, as by default, are left out."""
    given = {
        field.name: value
        for field in fields(message)
        if (value := getattr(message, field.name)) is not None or field.default is not None
    }
    return {"kind": message.kind, **given}


def decode(data: Any) -> Message | None:
    """The message of a JSON object; None if it has an unknown kind or other fields."""
    if not isinstance(data, dict):
        return None
    given: dict[str, Any] = dict(data)
    make = Message.by_kind.get(str(given.pop("kind", "")))
    with suppress(TypeError):
        if make is not None:
            return make(**given)
    return None


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

    def receive(self, timeout_s: float) -> Iterator[Message]:
        """Yield all queued messages, or the first that arrives before the timeout.

        Datagrams that are no known message are ignored.
        """
        with self._changed:
            # The thread may not have received the last messages of a sender that just exited.
            self._drain()
            self._changed.wait_for(lambda: self._arrived, timeout_s)
            arrived = tuple(self._arrived)
            self._arrived.clear()
        for data in arrived:
            with suppress(ValueError, RecursionError):
                message = decode(json.loads(data))
                if message is not None:
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


def send(path: Path, message: Message) -> None:
    """Send a message to the run; no error if it has ended."""
    data = json.dumps(encode(message)).encode()
    if len(data) > _MAX_BYTES:
        raise SpecError(
            f"metrics of {len(data)} bytes were reported",
            f"report at most {_MAX_BYTES} bytes",
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outbox, suppress(OSError):
        outbox.settimeout(_SEND_TIMEOUT_S)
        outbox.sendto(data, os.fspath(path))


def send_waiting(run: RunContext, task: str, is_waiting: bool) -> None:
    """Notify the run that the trainer waits for a task, or no longer does."""
    send(run.messages, Waiting(task, is_waiting))


def line_of(figures: Mapping[str, Any]) -> str:
    """Format metrics for display: `epoch 3  loss 0.1234  accuracy 0.79`."""
    return "  ".join(f"{name} {_formatted(value)}" for name, value in figures.items())


def _formatted(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
