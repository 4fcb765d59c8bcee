"""Watch a server's connections and cut those that ask for more than they may have.

gRPC reads a whole message before anyone can judge it, keeps silent connections for hours, and waits
for slow readers for ever; its settings cannot be reached through Flight. But the sockets belong to
this process: they are found in `/proc/self/fd`, the kernel counts what each has received, and a
socket that is shut down ends everything that waits for it. What an ended stream has cost goes back
to the system, although the process keeps freed memory otherwise.

Time is counted in rounds of the watch, so nothing here reads a clock.
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
from headrace.rpc.limits import RpcLimits
from headrace.rpc.open_sockets import Peer, connections, cut, plain_host, received_bytes

ROUND_S = 0.25

# Room for one request that is read and one that waits.
FACTOR_CUT = 2

# gRPC frees a stream's memory some time after it has ended, on threads of its own.
_ROUNDS_OF_RETURNING = 20

Phase = Literal["reading", "working", "writing"]


@dataclass(eq=False)
class Stream:
    """One client's stream and what it does at the moment.

    Attributes:
        peer: Address of the client.
        phase: What the store waits for: a request, its own answer, or the client to take it.
        moved: Set whenever the phase changes; the watch clears it.
        registered: Whether the client has begun as it should.
        rounds: Since the phase changed.
        age: Rounds since the stream was opened.
    """

    peer: Peer
    phase: Phase = "reading"
    moved: bool = True
    registered: bool = False
    rounds: int = 0
    age: int = 0

    def enter(self, phase: Phase) -> None:
        """Note what is waited for from now on."""
        self.phase = phase
        self.moved = True


@dataclass(eq=False)
class _Connection:
    """What the watch remembers of a socket."""

    rounds: int = 0
    received_bytes: int = 0
    silent_rounds: int = 0
    streams: list[Stream] = field(default_factory=list)


class Guard:
    """Bounds what connections to one port may cost.

    Args:
        limits: The bounds.
    """

    def __init__(self, limits: RpcLimits) -> None:
        self._limits = limits
        self._streams: set[Stream] = set()
        self._connections: dict[Peer, _Connection] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_ended = False
        self._rounds_of_returning = 0
        self.num_cut = 0

    def start(self, *ports: int) -> None:
        """Watch the connections that others made to ports of this process."""
        self._thread = threading.Thread(target=self._run, args=ports, name="guard", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def admit(self, peer: str) -> Iterator[Stream]:
        """Let a client in, for as long as the block lasts.

        Args:
            peer: As Flight names it: `ipv4:10.0.0.1:4711`.

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
        """Cut every connection to some ports."""
        for local, _, sock in connections():
            if local[1] in ports:
                cut(sock)

    def _run(self, *ports: int) -> None:
        while not self._stop.wait(ROUND_S):
            self.inspect(*ports)

    def inspect(self, *ports: int) -> None:
        """Look at all connections once."""
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
            self._rounds_of_returning = _ROUNDS_OF_RETURNING
        if self._rounds_of_returning > 0:
            self._rounds_of_returning -= 1
            return_freed_memory()

    def _breaks_limits(self, connection: _Connection, received_bytes: int) -> bool:
        limits, streams = self._limits, connection.streams
        connection.rounds += 1
        for stream in streams:
            if stream.moved:
                stream.moved = False
                stream.rounds = 0
                # A whole request was read, so the count of its bytes starts again.
                connection.received_bytes = received_bytes
        since_request = received_bytes - connection.received_bytes
        if not any(stream.registered for stream in streams):
            late = connection.rounds * ROUND_S > limits.greeting_s
            return late or since_request > limits.greeting_bytes
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
    """Address and port from Flight's name of a peer."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return plain_host(host.strip("[]")), int(port) if port.isdigit() else 0
