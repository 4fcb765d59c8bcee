"""Shared-memory channel from a sampler to a trainer on the same machine.

A *credit* is a sub-batch that may be queued for the trainer; a sampler without credit blocks, which
bounds the queue to the run-ahead window. A *slot* is the memory of a sub-batch, released with its
last array in the trainer. If the trainer keeps batches, the sampler allocates new slots and does
not block. Messages are JSON packets of a Unix socket; file descriptors of new slots are passed with
them.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.sampler_worker.channels.errors import PrefetchError, SamplerLostError
from headrace.graph.sampler_worker.channels.sub_batch import (
    Placed,
    SubBatch,
    from_fields,
    to_fields,
)
from headrace.linux.accepting import accept

# Below the default socket buffer size; enough for a graph with 1,000 edge types.
_MAX_PACKET_BYTES = 200_000

HEARTBEAT_TIMEOUT_S = 10.0
"""A sampler without a message for this long is lost; it sends a heartbeat every second."""


class Segment:
    """Memory that two processes map; it owns the descriptor `fd`."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = _create() if fd is None else fd
        self.num_bytes = 0
        self._memory = np.empty(0, np.uint8)

    def __del__(self) -> None:
        # The mapping is released with its last array.
        os.close(self.fd)

    def reserve(self, num_bytes: int) -> None:
        """Grow the segment; for the writer, while no reader uses it."""
        if num_bytes > self.num_bytes:
            # An eighth more, to grow rarely; untouched pages take no memory.
            os.ftruncate(self.fd, num_bytes + num_bytes // 8)
            self.map(num_bytes + num_bytes // 8)

    def map(self, num_bytes: int) -> np.ndarray:
        """Map at least `num_bytes`; for the reader."""
        if num_bytes > self.num_bytes:
            self._memory = np.frombuffer(mmap.mmap(self.fd, num_bytes), np.uint8)
            self.num_bytes = num_bytes
        return self._memory[:num_bytes]


class Held:
    """Memory of one batch as a numpy buffer, kept alive by any array of it."""

    def __init__(self, memory: np.ndarray) -> None:
        self._memory = memory
        self.__array_interface__ = memory.__array_interface__


def _create() -> int:
    if not hasattr(os, "memfd_create"):
        raise MissingExtraError(
            "anonymous shared memory is not available on this system", "run samplers on Linux"
        )
    return os.memfd_create("headrace", os.MFD_CLOEXEC)


class SubBatchSender(Protocol):
    """Sampler side of a channel."""

    def reserve(self, num_bytes: int) -> tuple[int, np.ndarray]:
        """Wait for a credit and return a slot and its memory."""
        ...

    def send(self, slot: int, sub_batch: SubBatch, placed: list[Placed]) -> None:
        """Send the contents of a slot."""
        ...

    def fail(self, problem: str, remedy: str, is_lost: bool = False) -> None:
        """Send an error as the last message; if `is_lost`, a replacement may succeed."""
        ...

    def close(self) -> None:
        """Close the connection and release waits for a credit."""
        ...


class SubBatchReceiver(Protocol):
    """Trainer side of a channel."""

    def receive(self) -> SubBatch:
        """Wait for the next sub-batch; raise `PrefetchError` if the sampler failed or is lost."""
        ...

    def send_model(self, model: bytes) -> None:
        """Send the newest model to a sampler with scores; does nothing if the sampler is lost."""
        ...

    def close(self) -> None:
        """Close the connection and release threads in `receive`."""
        ...


class TrainerGoneError(Exception):
    """The trainer has closed the connection."""


class ShmSender:
    """Sends sub-batches to a trainer on this machine.

    Up to `window` sub-batches may be queued. `on_gone` is called when the trainer has closed the
    connection or exited, `on_model` with every model that it sends.
    """

    def __init__(
        self,
        sock: socket.socket,
        window: int,
        on_gone: Callable[[], None] | None = None,
        on_model: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._socket = sock
        self._credits = window
        self._changed = threading.Condition()
        self._segments: list[Segment] = []
        self._known: set[int] = set()
        self._free: list[int] = []
        self._is_gone = self._is_closed = False
        self._on_gone = on_gone
        self._on_model = on_model
        self._reader = threading.Thread(target=self._read, name="credits", daemon=True)
        self._reader.start()

    def reserve(self, num_bytes: int) -> tuple[int, np.ndarray]:
        """Wait for a credit and return a slot and its memory; may raise `TrainerGoneError`."""
        with self._changed:
            self._changed.wait_for(lambda: self._credits > 0 or self._is_gone)
            if self._is_gone:
                raise TrainerGoneError
            self._credits -= 1
            if not self._free:
                self._segments.append(Segment())
                self._free.append(len(self._segments) - 1)
            # The slot released last is most likely in the CPU cache.
            slot = self._free.pop()
        segment = self._segments[slot]
        segment.reserve(num_bytes)
        return slot, segment.map(num_bytes)

    def send(self, slot: int, sub_batch: SubBatch, placed: list[Placed]) -> None:
        """Send the contents of a slot; may raise `TrainerGoneError`."""
        segment = self._segments[slot]
        fds = [] if slot in self._known else [segment.fd]
        self._known.add(slot)
        room = {"slot": slot, "num_bytes": segment.num_bytes}
        self._send({"part": to_fields(sub_batch, placed), **room}, fds)

    def beat(self) -> None:
        """Send a heartbeat."""
        # Not needed if the socket is full: the trainer has unread messages.
        with suppress(OSError):
            self._socket.send(b"{}", socket.MSG_DONTWAIT)

    def fail(self, problem: str, remedy: str, is_lost: bool = False) -> None:
        """Send an error as the last message; if `is_lost`, a replacement may succeed."""
        with suppress(TrainerGoneError):
            self._send({"problem": problem, "remedy": remedy, "is_lost": is_lost}, [])

    def close(self) -> None:
        """Close the connection and release waits for a credit."""
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()

    def _send(self, fields: Mapping[str, Any], fds: list[int]) -> None:
        try:
            socket.send_fds(self._socket, [json.dumps(fields).encode()], fds)
        except OSError:
            raise TrainerGoneError from None

    def _read(self) -> None:
        while True:
            message, fds = _receive(self._socket)
            if not message:
                break
            fields = json.loads(message)
            for fd in fds:
                self._on_model(Segment(fd).map(fields["model_bytes"]).tobytes())
            with self._changed:
                self._credits += fields.get("credits", 0)
                self._free += fields.get("free", [])
                self._changed.notify_all()
        with self._changed:
            self._is_gone = True
            self._changed.notify_all()
        if self._on_gone is not None and not self._is_closed:
            self._on_gone()


class ShmReceiver:
    """Receives sub-batches from a sampler on this machine, without a copy.

    `quiet_s` is the heartbeat timeout, `starting_s` that of the first message. `why_gone` returns
    why the sampler closed the connection.
    """

    def __init__(
        self,
        sock: socket.socket,
        sampler: str,
        quiet_s: float = HEARTBEAT_TIMEOUT_S,
        why_gone: Callable[[], str] = lambda: "it closed the connection",
        starting_s: float | None = None,
    ) -> None:
        self._socket = sock
        self._sampler = sampler
        self._quiet_s = quiet_s
        self._socket.settimeout(starting_s or quiet_s)
        self._why_gone = why_gone
        self._segments: dict[int, Segment] = {}
        self._receiving = threading.Lock()

    def receive(self) -> SubBatch:
        """Wait for the next sub-batch; raise `PrefetchError` if the sampler failed or is lost."""
        with self._receiving:
            while True:
                fields = self._next()
                if "problem" in fields:
                    kind = SamplerLostError if fields.get("is_lost") else PrefetchError
                    raise kind(f"{self._sampler}: {fields['problem']}", fields["remedy"])
                if "part" in fields:
                    sub_batch = self._map(fields)
                    _notify(self._socket, {"credits": 1})
                    return sub_batch

    def send_model(self, model: bytes) -> None:
        """Send the newest model to a sampler with scores; does nothing if the sampler is lost."""
        segment = Segment()
        segment.reserve(len(model))
        segment.map(len(model))[:] = np.frombuffer(model, np.uint8)
        message = json.dumps({"model_bytes": len(model)}).encode()
        with suppress(OSError):
            socket.send_fds(self._socket, [message], [segment.fd])

    def close(self) -> None:
        """Close the connection and release threads in `receive`; sub-batches stay valid."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # Only when no thread receives: it could read from a reused descriptor.
        with self._receiving:
            self._socket.close()
            self._segments.clear()

    def _next(self) -> dict[str, Any]:
        try:
            try:
                message, fds, _, _ = socket.recv_fds(self._socket, _MAX_PACKET_BYTES, 1)
            except ConnectionResetError:
                # Raised once if the sampler exits with unread credits; its last messages follow.
                message, fds, _, _ = socket.recv_fds(self._socket, _MAX_PACKET_BYTES, 1)
        except TimeoutError:
            problem = f"{self._sampler} sent nothing for {self._socket.gettimeout():g} s"
            raise SamplerLostError(problem, "check its machine") from None
        except OSError:
            message, fds = b"", []
        if not message:
            problem = f"{self._sampler} is gone: {self._why_gone()}"
            raise SamplerLostError(problem, "check its log and restart the run")
        if self._socket.gettimeout() != self._quiet_s:
            self._socket.settimeout(self._quiet_s)
        fields: dict[str, Any] = json.loads(message)
        for fd in fds:
            self._segments[fields["slot"]] = Segment(fd)
        return fields

    def _map(self, fields: Mapping[str, Any]) -> SubBatch:
        held = Held(self._segments[fields["slot"]].map(fields["num_bytes"]))
        freed = {"free": [fields["slot"]]}
        weakref.finalize(held, _notify, self._socket, freed).atexit = False
        return from_fields(fields["part"], np.asarray(held))


def _notify(sock: socket.socket, fields: Mapping[str, Any]) -> None:
    # Called from finalizers of arrays: must neither block nor raise.
    with suppress(OSError):
        sock.send(json.dumps(fields).encode(), socket.MSG_DONTWAIT)


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    try:
        message, fds, _, _ = socket.recv_fds(sock, _MAX_PACKET_BYTES, 1)
    except OSError:
        return b"", []
    return message, fds


def accept_trainer(path: Path, on_listening: Callable[[], None]) -> socket.socket:
    """Listen on a Unix socket until a trainer connects, then remove the socket file.

    `on_listening` is called once the socket listens. The file of an earlier sampler is replaced.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            path.unlink(missing_ok=True)
            listener.bind(os.fspath(path))
            path.chmod(0o600)
        except OSError as error:
            raise SpecError(
                f"a sampler cannot listen at {path}: {error.strerror or error}",
                "use a path of at most 107 bytes in a writable folder",
            ) from None
        listener.listen(1)
        on_listening()
        connection = accept(listener)
    with suppress(OSError):
        path.unlink()
    return connection


def connect_sampler(path: Path, sampler: str, quiet_s: float = HEARTBEAT_TIMEOUT_S) -> ShmReceiver:
    """Connect to a listening sampler; raise `SamplerLostError` if it does not listen."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(quiet_s)
    try:
        sock.connect(os.fspath(path))
    except OSError as error:
        sock.close()
        raise SamplerLostError(
            f"{sampler} does not listen at {path}: {error.strerror or error}",
            "check its log and restart the run",
        ) from None
    return ShmReceiver(sock, sampler, quiet_s)
