"""From a sampler to the trainer on the same machine: memory is shared, a socket says what is in it.

Two things are counted. A *credit* is a batch that may wait for the trainer; there are as many as
the run-ahead window, and a sampler without credit waits, so nothing grows. A *slot* is memory of a
batch; it is given back when the trainer has let go of the batch's last array. A trainer that keeps
batches gets new slots instead of a sampler that waits for ever: kept batches are its own memory.

Messages are JSON in packets of a Unix socket, descriptors of new slots travel beside them.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.sampler_worker.channels.errors import FeedError, SamplerLostError
from headrace.graph.sampler_worker.channels.shared_memory import Held, Segment
from headrace.graph.sampler_worker.channels.sub_batch import (
    Placed,
    SubBatch,
    from_fields,
    to_fields,
)

# The kernel's default for what a socket holds; a graph with 1,000 edge types stays below.
_MAX_PACKET_BYTES = 200_000

QUIET_S = 10.0
"""A sampler that says nothing for so long is taken for dead; it says something every second."""


class SubBatchSender(Protocol):
    """The sampler's side of a hand-over."""

    def reserve(self, num_bytes: int) -> tuple[int, np.ndarray]:
        """Wait for a credit; then a slot's number, and its memory."""
        ...

    def send(self, slot: int, part: SubBatch, placed: list[Placed]) -> None:
        """Hand over what was written to a slot."""
        ...

    def fail(self, problem: str, remedy: str, is_lost: bool = False) -> None:
        """Say what went wrong, as the last message; and whether it may go better elsewhere."""
        ...

    def close(self) -> None:
        """End the connection; whoever waits for a credit is told."""
        ...


class SubBatchReceiver(Protocol):
    """The trainer's side of a hand-over."""

    def receive(self) -> SubBatch:
        """Wait for the next part.

        Raises:
            FeedError: The sampler failed or is gone.
        """
        ...

    def close(self) -> None:
        """End the connection; whoever waits in `receive` is told."""
        ...


class TrainerGoneError(Exception):
    """The other side has closed; there is nobody to hand anything to."""


class ShmSender:
    """Hands parts to a trainer on this machine.

    Args:
        sock: A connected Unix socket of packets.
        window: How many parts may wait for the trainer.
        on_gone: Called when the trainer has closed or died.
    """

    def __init__(
        self, sock: socket.socket, window: int, on_gone: Callable[[], None] | None = None
    ) -> None:
        self._socket = sock
        self._credits = window
        self._changed = threading.Condition()
        self._segments: list[Segment] = []
        self._known: set[int] = set()
        self._free: list[int] = []
        self._is_gone = self._is_closed = False
        self._on_gone = on_gone
        self._reader = threading.Thread(target=self._read, name="credits", daemon=True)
        self._reader.start()

    def reserve(self, num_bytes: int) -> tuple[int, np.ndarray]:
        """Wait for a credit; then a slot's number, and its memory.

        Raises:
            TrainerGoneError: There will be no credit any more.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._credits > 0 or self._is_gone)
            if self._is_gone:
                raise TrainerGoneError
            self._credits -= 1
            if not self._free:
                self._segments.append(Segment())
                self._free.append(len(self._segments) - 1)
            # The last one that was given back is the likeliest to be in the processor's cache.
            slot = self._free.pop()
        segment = self._segments[slot]
        segment.reserve(num_bytes)
        return slot, segment.map(num_bytes)

    def send(self, slot: int, part: SubBatch, placed: list[Placed]) -> None:
        """Hand over what was written to a slot.

        Raises:
            TrainerGoneError: Nobody is there.
        """
        segment = self._segments[slot]
        fds = [] if slot in self._known else [segment.fd]
        self._known.add(slot)
        room = {"slot": slot, "num_bytes": segment.num_bytes}
        self._send({"part": to_fields(part, placed), **room}, fds)

    def beat(self) -> None:
        """Say that this process lives, unless nobody listens."""
        # A trainer that does not listen now needs no beat: it has unread messages.
        with suppress(OSError):
            self._socket.send(b"{}", socket.MSG_DONTWAIT)

    def fail(self, problem: str, remedy: str, is_lost: bool = False) -> None:
        """Say what went wrong, as the last message; and whether it may go better elsewhere."""
        with suppress(TrainerGoneError):
            self._send({"problem": problem, "remedy": remedy, "is_lost": is_lost}, [])

    def close(self) -> None:
        """End the connection; whoever waits for a credit is told."""
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
        while message := _receive(self._socket):
            fields = json.loads(message)
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
    """Takes parts from a sampler on this machine, without a copy.

    Args:
        sock: The other end of the sender's socket.
        sampler: Task and machine, for messages.
        quiet_s: When a sampler that says nothing is dead.
        why_gone: Says more about a sampler that has closed.
        starting_s: How long its first word may take; none if it is as quick as any other.
    """

    def __init__(
        self,
        sock: socket.socket,
        sampler: str,
        quiet_s: float = QUIET_S,
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
        """Wait for the next part.

        Raises:
            FeedError: The sampler failed or is gone.
        """
        with self._receiving:
            while True:
                fields = self._next()
                if "problem" in fields:
                    kind = SamplerLostError if fields.get("is_lost") else FeedError
                    raise kind(f"{self._sampler}: {fields['problem']}", fields["remedy"])
                if "part" in fields:
                    part = self._show(fields)
                    _tell(self._socket, {"credits": 1})
                    return part

    def close(self) -> None:
        """End the connection; whoever waits in `receive` is told.

        Batches that were received stay as they are.
        """
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # Not sooner: a thread that still waits would else read whatever gets the same number.
        with self._receiving:
            self._socket.close()
            self._segments.clear()

    def _next(self) -> dict[str, Any]:
        try:
            try:
                message, fds, _, _ = socket.recv_fds(self._socket, _MAX_PACKET_BYTES, 1)
            except ConnectionResetError:
                # Said once when a sampler ends with unread credits; its last parts come after it.
                message, fds, _, _ = socket.recv_fds(self._socket, _MAX_PACKET_BYTES, 1)
        except TimeoutError:
            problem = f"{self._sampler} has said nothing for {self._socket.gettimeout():g} s"
            raise SamplerLostError(problem, "see whether its machine still works") from None
        except OSError:
            message, fds = b"", []
        if not message:
            problem = f"{self._sampler} is gone: {self._why_gone()}"
            raise SamplerLostError(problem, "see its log, and start the run again")
        if self._socket.gettimeout() != self._quiet_s:
            self._socket.settimeout(self._quiet_s)
        fields: dict[str, Any] = json.loads(message)
        for fd in fds:
            self._segments[fields["slot"]] = Segment(fd)
        return fields

    def _show(self, fields: Mapping[str, Any]) -> SubBatch:
        held = Held(self._segments[fields["slot"]].map(fields["num_bytes"]))
        freed = {"free": [fields["slot"]]}
        weakref.finalize(held, _tell, self._socket, freed).atexit = False
        return from_fields(fields["part"], np.asarray(held))


def _tell(sock: socket.socket, fields: Mapping[str, Any]) -> None:
    # Called wherever the last array of a batch goes away: it must neither wait nor fail.
    with suppress(OSError):
        sock.send(json.dumps(fields).encode(), socket.MSG_DONTWAIT)


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(_MAX_PACKET_BYTES)
    except OSError:
        return b""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a hand-over: the trainer's, and the sampler's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def await_trainer(path: Path, on_listening: Callable[[], None]) -> socket.socket:
    """Listen until a trainer comes; nobody else is let in.

    Args:
        path: Of the file; one that an earlier sampler left is replaced.
        on_listening: Called once a trainer may come.

    Raises:
        SpecError: The file cannot be made.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        try:
            path.unlink(missing_ok=True)
            door.bind(os.fspath(path))
            path.chmod(0o600)
        except OSError as error:
            raise SpecError(
                f"a sampler cannot listen at {path}: {error.strerror or error}",
                "give a path of at most 107 bytes in a folder of yours",
            ) from None
        door.listen(1)
        on_listening()
        connection, _ = door.accept()
    with suppress(OSError):
        path.unlink()
    return connection


def meet_sampler(path: Path, sampler: str, quiet_s: float = QUIET_S) -> ShmReceiver:
    """Connect to a sampler that listens.

    Args:
        path: Of the file.
        sampler: Task and machine, for messages.
        quiet_s: When a sampler that says nothing is dead.

    Raises:
        SamplerLostError: It does not listen.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(quiet_s)
    try:
        sock.connect(os.fspath(path))
    except OSError as error:
        sock.close()
        raise SamplerLostError(
            f"{sampler} does not listen at {path}: {error.strerror or error}",
            "see its log, and start the run again",
        ) from None
    return ShmReceiver(sock, sampler, quiet_s)
