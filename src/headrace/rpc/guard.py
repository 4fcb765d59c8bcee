"""Enforce limits on a server's connections and close those that exceed them.

gRPC reads a whole message before it can be checked, keeps idle connections for hours and waits for
slow readers without a limit; Flight does not expose these settings. The guard finds the sockets in
`/proc/self/fd`, reads the kernel's byte counters and shuts down offending sockets. Memory of closed
streams is returned to the system. Time is counted in polling rounds; no clock is read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

from headrace.core.errors import SpecError
from headrace.linux.malloc import return_freed_memory
from headrace.rpc.config import RpcLimits
from headrace.rpc.open_sockets import Peer, connections, cut, plain_host, received_bytes

ROUND_S = 0.25

# One request being read and one waiting.
FACTOR_CUT = 2

# gRPC frees a stream's memory some time after it has closed, on its own threads.
_NUM_TRIM_ROUNDS = 20

Phase = Literal["reading", "working", "writing"]


@dataclass(eq=False)
class Stream:
    """State of one client's stream.

    Attributes:
        peer: Address of the client.
        phase: What the server is doing: reading a request, computing or writing the reply.
        moved: Set whenever the phase changes; cleared by the guard.
        registered: Whether the client has authenticated.
        rounds: Polling rounds since the phase changed.
        age: Polling rounds since the stream was opened.
    """

    peer: Peer
    phase: Phase = "reading"
    moved: bool = True
    registered: bool = False
    rounds: int = 0
    age: int = 0

    def enter(self, phase: Phase) -> None:
        """Enter a phase."""
        self.phase = phase
        self.moved = True


@dataclass(eq=False)
class _Connection:
    """Polling state of a socket."""

    rounds: int = 0
    received_bytes: int = 0
    streams: list[Stream] = field(default_factory=list)


class Guard:
    """Enforces limits on the connections to a server's ports."""

    def __init__(self, limits: RpcLimits) -> None:
        self._limits = limits
        self._streams: set[Stream] = set()
        self._connections: dict[Peer, _Connection] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._trim_rounds_left = 0
        self.num_cut = 0

    def start(self, *ports: int) -> None:
        """Start polling the connections to ports of this process."""
        self._thread = threading.Thread(target=self._run, args=ports, name="guard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop polling."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def admit(self, peer: str) -> Iterator[Stream]:
        """Register a stream of `peer` (Flight's format: `ipv4:10.0.0.1:4711`) during the block.

        Raises:
            SpecError: There are too many streams.
        """
        stream = Stream(parse_peer(peer))
        with self._lock:
            if len(self._streams) >= self._limits.max_streams:
                raise SpecError(
                    f"the store has {len(self._streams)} clients already",
                    "close some, or raise the store's max_streams",
                )
            self._streams.add(stream)
        try:
            yield stream
        finally:
            with self._lock:
                self._streams.discard(stream)
                self._has_ended = True

    def cut_all(self, *ports: int) -> None:
        """Close every connection to the given ports."""
        for local, _, sock in connections():
            if local[1] in ports:
                cut(sock)

    def _run(self, *ports: int) -> None:
        while not self._stop.wait(ROUND_S):
            self.inspect(*ports)

    def inspect(self, *ports: int) -> None:
        """Check all connections once."""
        with self._lock:
            streams = list(self._streams)
        before, self._connections = self._connections, {}
        for local, peer, sock in connections():
            if local[1] not in ports:
                continue
            connection = before.get(peer) or _Connection()
            self._connections[peer] = connection
            connection.streams = [stream for stream in streams if stream.peer == peer]
            if self._breaks_limits(connection, received_bytes(sock)):
                self.num_cut += 1
                cut(sock)
        for stream in streams:
            stream.age += 1
            stream.rounds += 1
        self._return_memory(self._has_ended or bool(before.keys() - self._connections.keys()))

    def _return_memory(self, has_ended: bool) -> None:
        if has_ended:
            self._has_ended = False
            self._trim_rounds_left = _NUM_TRIM_ROUNDS
        if self._trim_rounds_left > 0:
            self._trim_rounds_left -= 1
            return_freed_memory()

    def _breaks_limits(self, connection: _Connection, received_bytes: int) -> bool:
        limits, streams = self._limits, connection.streams
        connection.rounds += 1
        for stream in streams:
            if stream.moved:
                stream.moved = False
                stream.rounds = 0
                # A whole request was read: restart the byte count.
                connection.received_bytes = received_bytes
        since_request = received_bytes - connection.received_bytes
        if not any(stream.registered for stream in streams):
            late = connection.rounds * ROUND_S > limits.handshake_s
            return late or since_request > limits.handshake_bytes
        connection.rounds = 0
        if since_request > FACTOR_CUT * limits.max_request_bytes:
            return True
        return any(self._is_late(stream) for stream in streams)

    def _is_late(self, stream: Stream) -> bool:
        if self._limits.stream_s is not None and stream.age * ROUND_S > self._limits.stream_s:
            return True
        waited_s = stream.rounds * ROUND_S
        if stream.phase == "writing":
            return waited_s > self._limits.stall_s
        return stream.phase == "reading" and waited_s > self._limits.idle_s


def parse_peer(peer: str) -> Peer:
    """Address and port from Flight's peer name."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return plain_host(host.strip("[]")), int(port) if port.isdigit() else 0
