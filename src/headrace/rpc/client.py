"""Client channels to RPC servers."""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.core.errors import HeadraceError, SpecError
from headrace.rpc.config import TaskAddress
from headrace.rpc.connection import (
    ACCEPTED,
    LENGTH,
    TOO_MANY,
    WRONG_TOKEN,
    Connection,
    Steps,
    read,
    read_length,
)
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import DiskFullError, StoreError, StoreLostError
from headrace.rpc.event_loop import EventLoop, event_loop
from headrace.rpc.framing import (
    MAX_FRAME_BYTES,
    Fields,
    Message,
    decode_frame,
    encode_request,
)

_CLOSED = "it closed the connection"
_MIN_TIMEOUT_S = 0.001

CHECK_LOG = "check its log and whether its machine is up, then start the run again"


class Channel(Protocol):
    """A connection to one server; thread-safe."""

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Send a request.

        The future fails with `StoreError` if the server refuses the request, is unreachable, or
        does not reply within `timeout_s`.
        """
        ...

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        ...


@dataclass(eq=False)
class _Pending:
    """A request without a reply yet."""

    future: Future[Message]
    operation: str
    timeout_s: float
    deadline_s: float


class RpcChannel:
    """A connection to one server, with several requests in flight.

    A server that misses one deadline is considered dead: the connection is closed and all pending
    requests fail.

    Args:
        address: Address of the server.
        credentials: Credentials of the run; with an identity, the connection uses TLS.
        connect_timeout_s: Timeout for opening the connection.
        ping_s: Interval of pings on an idle connection. They detect a dead server and keep the
            connection open.
        ping_timeout_s: Timeout after which a server that does not answer a ping is considered dead.
        loop: Event loop; that of the process by default.

    Raises:
        StoreError: The server is unreachable or rejects this client.
    """

    def __init__(
        self,
        address: TaskAddress,
        credentials: Credentials,
        connect_timeout_s: float = 10.0,
        ping_s: float = 20.0,
        ping_timeout_s: float = 10.0,
        loop: EventLoop | None = None,
    ) -> None:
        loop = loop or event_loop()
        self._address = address
        self._clock = loop.clock
        self._ping_s = ping_s
        self._ping_timeout_s = ping_timeout_s
        self._lock = threading.Lock()
        self._pending: dict[int, _Pending] = {}
        self._next_number = 1
        self._failure: StoreError | None = None
        self._last_s = self._clock()
        self._max_request_bytes = 0
        sock = self._open(credentials, connect_timeout_s)
        self._connection = _ClientConnection(sock, self._deliver, self._lose, self._expire)
        self._connection.deadline_s = self._last_s + ping_s
        loop.watch(self._connection)

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Send a request; see `Channel`."""
        operation = str(fields.get("op"))
        with self._lock:
            number = self._next_number
            self._next_number += 1
        data = encode_request(number, fields, arrays)
        future = self._register(number, operation, timeout_s, len(data))
        if not future.done():
            # The thread that receives learns why a connection has ended.
            with suppress(OSError):
                self._connection.send([LENGTH.pack(len(data)), data])
        return future

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        self._end(StoreError(f"the connection to {self._address} was closed", "open a new one"))

    def _register(
        self, number: int, operation: str, timeout_s: float, num_bytes: int
    ) -> Future[Message]:
        """Add a pending request; its future has failed already if it cannot be sent."""
        future: Future[Message] = Future()
        if num_bytes > self._max_request_bytes:
            problem = (
                f"{self._address} refused to {operation}: the request has {num_bytes} bytes, "
                f"at most {self._max_request_bytes} are allowed"
            )
            future.set_exception(StoreError(problem, "send smaller requests"))
            return future
        with self._lock:
            if self._failure is not None:
                future.set_exception(self._failure)
                return future
            self._last_s = self._clock()
            deadline_s = self._last_s + timeout_s
            self._pending[number] = _Pending(future, operation, timeout_s, deadline_s)
            self._connection.deadline_s = min(self._connection.deadline_s, deadline_s)
        return future

    def _open(self, credentials: Credentials, timeout_s: float) -> socket.socket:
        """Connect and present the token."""
        host, identity = self._address.host, credentials.identity
        context = None if identity is None else identity.client_context
        end_s = self._clock() + timeout_s
        try:
            sock = socket.create_connection((host, self._address.port), timeout_s)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.settimeout(self._left_s(end_s))
                if context is not None:
                    sock = context.wrap_socket(sock, server_hostname=host)
                token = credentials.token.reveal()
                sock.sendall(LENGTH.pack(len(token)) + token)
                verdict = self._read(sock, len(ACCEPTED), end_s)
                if verdict == ACCEPTED:
                    length = self._read(sock, LENGTH.size, end_s)
                    (self._max_request_bytes,) = LENGTH.unpack(length)
            except BaseException:
                sock.close()
                raise
        except TimeoutError:
            raise StoreLostError(
                f"{self._address} did not accept the connection within {timeout_s:g} s", CHECK_LOG
            ) from None
        except (OSError, EOFError) as error:
            raise self._lost(error) from None
        if verdict == ACCEPTED:
            return sock
        sock.close()
        if verdict == WRONG_TOKEN:
            problem = f"{self._address} rejected this client: the token is not that of its run"
            raise StoreError(problem, "use the credentials of this run")
        if verdict == TOO_MANY:
            problem = f"{self._address} has too many clients already"
            raise StoreLostError(problem, "close some, or raise the server's max_streams")
        problem = f"{self._address} is not a headrace task of this version"
        raise StoreError(problem, "use the same headrace version everywhere")

    def _read(self, sock: socket.socket, num_bytes: int, end_s: float) -> bytes:
        data = b""
        while len(data) < num_bytes:
            sock.settimeout(self._left_s(end_s))
            more = sock.recv(num_bytes - len(data))
            if not more:
                raise EOFError(_CLOSED)
            data += more
        return data

    def _left_s(self, end_s: float) -> float:
        return max(end_s - self._clock(), _MIN_TIMEOUT_S)

    def _deliver(self, reply: Message) -> None:
        with self._lock:
            pending = self._pending.pop(reply.number, None)
        if pending is None:
            return
        if "problem" in reply.fields:
            problem = f"{self._address} refused to {pending.operation}: {reply.fields['problem']}"
            kind = DiskFullError if reply.fields.get("is_full") else StoreError
            pending.future.set_exception(kind(problem, str(reply.fields.get("remedy"))))
        else:
            pending.future.set_result(reply)

    def _expire(self, now_s: float) -> None:
        """Fail if a request is late, send a ping if none was sent for long."""
        with self._lock:
            late = next((each for each in self._pending.values() if each.deadline_s <= now_s), None)
            is_idle = not self._pending and now_s >= self._last_s + self._ping_s
            deadlines = [each.deadline_s for each in self._pending.values()]
            self._connection.deadline_s = min(deadlines, default=self._last_s + self._ping_s)
        if late is not None:
            problem = f"{self._address} did not answer {late.operation} in {late.timeout_s:g} s"
            self._end(StoreLostError(problem, CHECK_LOG))
        elif is_idle:
            self._ping()

    def _ping(self) -> None:
        """Send a ping without waiting; a thread that is sending makes it unnecessary."""
        with self._lock:
            number = self._next_number
            self._next_number += 1
        data = encode_request(number, {"op": "ping"}, ())
        self._register(number, "ping", self._ping_timeout_s, len(data))
        if not self._connection.try_send(LENGTH.pack(len(data)) + data):
            with self._lock:
                self._pending.pop(number, None)

    def _lose(self, error: Exception | None) -> None:
        """Handle the end of the connection."""
        if isinstance(error, HeadraceError):
            problem = f"{self._address} sent an invalid reply ({error.problem})"
            self._end(StoreError(problem, error.remedy))
        else:
            self._end(self._lost(error or EOFError(_CLOSED)))

    def _lost(self, error: Exception) -> StoreLostError:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return StoreLostError(f"{self._address} is gone ({reason})", CHECK_LOG)

    def _end(self, error: StoreError) -> None:
        """Close the connection, once, and fail all pending requests."""
        with self._lock:
            failure = self._failure = self._failure or error
            pending, self._pending = list(self._pending.values()), {}
        self._connection.cut()
        for each in pending:
            each.future.set_exception(failure)


class _ClientConnection(Connection):
    """Socket of a channel.

    Args:
        sock: Connected socket.
        deliver: Called with each reply.
        lose: Called when the connection has ended.
        expire: Called at the deadline.
    """

    def __init__(
        self,
        sock: socket.socket,
        deliver: Callable[[Message], None],
        lose: Callable[[Exception | None], None],
        expire: Callable[[float], None],
    ) -> None:
        super().__init__(sock)
        self._deliver, self._lose, self._expire = deliver, lose, expire

    def expire(self, now_s: float) -> None:
        """Check the pending requests."""
        self._expire(now_s)

    def _receive(self) -> Steps:
        while True:
            length = yield from read_length()
            if length > MAX_FRAME_BYTES:
                raise SpecError(f"a frame of {length} bytes", "use one headrace version everywhere")
            reply = decode_frame((yield from read(length)))
            for number in range(len(reply.arrays)):
                yield reply.arrays[number].reshape(-1).view(np.uint8).data
            self._deliver(reply)
            # No reply stays in memory while the connection is idle.
            del reply

    def _end(self, failure: Exception | None) -> None:
        self.deadline_s = math.inf
        self._lose(failure)
