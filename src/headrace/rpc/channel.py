"""Client channels to a store: the `Channel` interface and its Arrow Flight implementation.

`socket_channel.py` implements the same interface on raw TCP sockets, which are faster.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from headrace.core.errors import HeadraceError, MissingExtraError
from headrace.rpc.config import TaskAddress
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import StoreError, StoreLostError
from headrace.rpc.framing import Fields, Message, decode_reply, encode_request
from headrace.rpc.open_sockets import Peer, addresses_of, connections, cut

TICK_S = 0.1

# Without this, clients of a process share a connection, and flows cannot be distinguished.
GRPC_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)

CHECK_LOG = "check its log and whether its machine is up, then start the run again"


class Channel(Protocol):
    """A connection to one store; thread-safe."""

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Send a request.

        The future fails with `StoreError` if the store refuses the request, is unreachable, or does
        not reply within `timeout_s`.
        """
        ...

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        ...


@dataclass(eq=False)
class _Waiting:
    """A request without a reply yet."""

    future: Future[Message]
    operation: str
    timeout_s: float
    left_s: float


class StreamChannel(ABC):
    """One long-lived stream to one store, with several requests in flight.

    A store that misses one deadline is considered dead: the stream is cancelled and all pending
    requests fail.

    Args:
        address: Address of the store.
        credentials: Credentials of the run; with an identity, the connection uses TLS.
        connect_timeout_s: Timeout for opening the stream.
        ping_s: Interval of pings on an idle stream. They detect a dead store and keep the stream
            open.
        ping_timeout_s: Timeout after which a store that does not answer a ping is considered dead.

    Attributes:
        offers: Fields of the store's first reply.

    Raises:
        StoreError: The store is unreachable or rejects this client.
    """

    def __init__(
        self,
        address: TaskAddress,
        credentials: Credentials,
        connect_timeout_s: float = 10.0,
        ping_s: float = 20.0,
        ping_timeout_s: float = 10.0,
    ) -> None:
        self.offers: Fields = {}
        self._address = address
        self._ping_s = ping_s
        self._ping_timeout_s = ping_timeout_s
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: dict[int, _Waiting] = {}
        self._next_number = 1
        self._failure: StoreError | None = None
        self._stop = threading.Event()
        self._opened = threading.Event()
        name = f"channel to {address}"
        arguments = (credentials, connect_timeout_s)
        self._thread = threading.Thread(target=self._read, args=arguments, name=name)
        self._watch = threading.Thread(target=self._tick, name=name)
        for thread in (self._thread, self._watch):
            thread.daemon = True
        self._thread.start()
        if not self._opened.wait(connect_timeout_s):
            self._lose(f"{address} did not accept the connection within {connect_timeout_s:g} s")
        self._watch.start()
        if self._failure is None:
            # A stream opens before the server has accepted it: the ping checks that.
            try:
                self.offers = self.ask({"op": "ping"}, (), connect_timeout_s).result().fields
            except StoreError:
                self.close()
                raise
        if self._failure is not None:
            raise self._failure

    @abstractmethod
    def _open(self, credentials: Credentials, timeout_s: float) -> None:
        """Open the stream."""

    @abstractmethod
    def _is_refusal(self, error: Exception) -> bool:
        """Whether the server rejected the token."""

    @abstractmethod
    def _send(self, data: bytes) -> None:
        """Send a request; called by one thread at a time."""

    @abstractmethod
    def _receive(self) -> Message:
        """Wait for a reply; raises `StopIteration` at the end of the stream."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Cancel the stream; a blocked read returns."""

    @abstractmethod
    def _cut(self) -> None:
        """Close the connection; a write blocked by a hanging store returns."""

    @abstractmethod
    def _close_ends(self) -> None:
        """Release the stream's resources."""

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Send a request; see `Channel`."""
        future: Future[Message] = Future()
        operation = str(fields.get("op"))
        with self._lock:
            if self._failure is not None:
                future.set_exception(self._failure)
                return future
            number = self._next_number
            self._next_number += 1
            self._waiting[number] = _Waiting(future, operation, timeout_s, timeout_s)
        data = encode_request(number, fields, arrays)
        with self._writing:
            self._write(data)
        return future

    def close(self) -> None:
        """Close the connection; pending requests fail."""
        self._fail(f"the connection to {self._address} was closed", "open a new one")
        current = threading.current_thread()
        for thread in (self._watch, self._thread):
            if thread is not current and thread.ident is not None:
                thread.join(TICK_S * 20)
        with self._writing:
            self._close_ends()

    def _write(self, data: bytes) -> None:
        # A write may fail first, but only the reader gets the reason.
        with suppress(Exception):
            self._send(data)

    def _read(self, credentials: Credentials, timeout_s: float) -> None:
        """Open the stream and deliver replies; runs in its own thread."""
        try:
            self._open(credentials, timeout_s)
            self._opened.set()
            if self._failure is not None:
                self._interrupt()
            while True:
                self._deliver(self._receive())
        except StopIteration:
            self._lose(f"{self._address} closed the connection")
        except HeadraceError as error:
            self._fail(f"{self._address} sent an invalid reply ({error.problem})", error.remedy)
        except Exception as error:
            if self._is_refusal(error):
                problem = f"{self._address} rejected this client: the token is not that of its run"
                self._fail(problem, "use the credentials of this run")
            else:
                self._lose(f"{self._address} is gone ({_reason(error)})")
        finally:
            self._opened.set()

    def _deliver(self, reply: Message) -> None:
        with self._lock:
            waiting = self._waiting.pop(reply.number, None)
        if waiting is None:
            return
        if "problem" in reply.fields:
            problem = f"{self._address} refused to {waiting.operation}: {reply.fields['problem']}"
            waiting.future.set_exception(StoreError(problem, str(reply.fields.get("remedy"))))
        else:
            waiting.future.set_result(reply)

    def _tick(self) -> None:
        """Check deadlines and send pings; runs in its own thread."""
        idle_s = 0.0
        while not self._stop.wait(TICK_S):
            idle_s += TICK_S
            with self._lock:
                late = None
                for waiting in self._waiting.values():
                    idle_s = 0.0
                    waiting.left_s -= TICK_S
                    if waiting.left_s <= 0:
                        late = waiting
            if late is not None:
                self._lose(
                    f"{self._address} did not answer {late.operation} in {late.timeout_s:g} s"
                )
                self._cut()
            elif idle_s >= self._ping_s:
                idle_s = 0.0
                self._ping()

    def _ping(self) -> None:
        # If another thread holds the lock, it is writing; no ping is needed.
        if self._writing.acquire(blocking=False):
            self._writing.release()
            self.ask({"op": "ping"}, (), self._ping_timeout_s)

    def _lose(self, problem: str) -> None:
        self._end(StoreLostError(problem, CHECK_LOG))

    def _fail(self, problem: str, remedy: str) -> None:
        self._end(StoreError(problem, remedy))

    def _end(self, error: StoreError) -> None:
        """Close the stream, once, and fail all pending requests."""
        with self._lock:
            first = self._failure is None
            failure = self._failure = self._failure or error
            waiting, self._waiting = list(self._waiting.values()), {}
        self._stop.set()
        if first:
            self._interrupt()
        for each in waiting:
            if not each.future.done():
                each.future.set_exception(failure)


class FlightChannel(StreamChannel):
    """An Arrow Flight stream to one store; see `StreamChannel`."""

    def __init__(
        self,
        address: TaskAddress,
        credentials: Credentials,
        connect_timeout_s: float = 10.0,
        ping_s: float = 20.0,
        ping_timeout_s: float = 10.0,
    ) -> None:
        try:
            from pyarrow import flight
        except ImportError:
            raise MissingExtraError(
                "pyarrow is not installed", "pip install 'headrace[train]'"
            ) from None
        self._flight = flight
        self._peers: frozenset[Peer] = frozenset()
        self._client: Any = None
        self._reader: Any = None
        self._writer: Any = None
        super().__init__(address, credentials, connect_timeout_s, ping_s, ping_timeout_s)

    def _open(self, credentials: Credentials, timeout_s: float) -> None:
        from headrace.rpc.server import REQUEST_SCHEMA, TOKEN_HEADER

        self._peers = addresses_of(self._address.host, self._address.port)
        flight, identity = self._flight, credentials.identity
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        scheme = "grpc+tcp" if identity is None else "grpc+tls"
        tls: dict[str, Any] = {}
        if identity is not None:
            tls = {
                "tls_root_certs": identity.authority,
                "cert_chain": identity.certificate,
                "private_key": identity.key.reveal(),
            }
        self._client = flight.FlightClient(
            f"{scheme}://{host}:{self._address.port}",
            generic_options=list(GRPC_OPTIONS),
            **tls,
        )
        headers = [(TOKEN_HEADER.encode(), credentials.token.reveal())]
        self._writer, self._reader = self._client.do_exchange(
            flight.FlightDescriptor.for_command(b"store"), flight.FlightCallOptions(headers=headers)
        )
        self._writer.begin(REQUEST_SCHEMA)

    def _is_refusal(self, error: Exception) -> bool:
        return isinstance(error, self._flight.FlightUnauthenticatedError)

    def _send(self, data: bytes) -> None:
        self._writer.write_metadata(data)

    def _receive(self) -> Message:
        chunk = self._reader.read_chunk()
        buffers = [] if chunk.data is None else [c.buffers()[2] for c in chunk.data.columns]
        return decode_reply(memoryview(chunk.app_metadata or b""), buffers)

    def _interrupt(self) -> None:
        if self._reader is not None:
            self._reader.cancel()

    def _cut(self) -> None:
        """Close the connection; see `StreamChannel`.

        Cancelling the stream does not end such a write. This closes all connections of this process
        to the store, since it is dead for the other channels too.
        """
        for _, peer, sock in connections():
            if peer in self._peers:
                cut(sock)

    def _close_ends(self) -> None:
        for end in (self._writer, self._client):
            _close_quietly(end)
        self._writer = self._client = None


def _reason(error: Exception) -> str:
    """The error message of gRPC, without its debug context."""
    text = str(error).partition(". gRPC client debug context")[0]
    text = text.partition("error, with message: ")[2] or text
    return text.splitlines()[0][:300] if text else type(error).__name__


def _close_quietly(end: Any) -> None:
    if end is not None:
        with suppress(Exception):
            end.close()
