"""How a client reaches a store: a small interface, and Flight behind it.

A bare socket is faster (`socket_channel.py`), and RDMA would be one more class.
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
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import StoreError, StoreLostError
from headrace.rpc.framing import Fields, Message, decode_reply, encode_request
from headrace.rpc.open_sockets import Peer, addresses_of, connections, cut

TICK_S = 0.1

# Clients of one process would else share a connection, and flows could not be told apart.
GRPC_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)

_SEE_LOG = "see its log, or whether its machine is up, and start the run again"


@dataclass(frozen=True)
class Address:
    """Where a store is.

    Attributes:
        task: Name of the store, for messages.
        machine: Name of its machine, for messages.
        host: Name or address it listens on.
        port: Port it listens on.
    """

    task: str
    machine: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.task} on {self.machine}"


class Channel(Protocol):
    """A way to ask one store; safe for several threads."""

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        """Send a request.

        The future fails with `StoreError` if the store refuses, if it has not answered after
        `timeout_s`, or if it is gone. It never waits longer.
        """
        ...

    def close(self) -> None:
        """Give up what is still open."""
        ...


@dataclass(eq=False)
class _Waiting:
    """A request whose reply has not come."""

    future: Future[Message]
    operation: str
    timeout_s: float
    left_s: float


class StreamChannel(ABC):
    """One long-lived stream to one store, with several requests on their way.

    A store that misses one deadline is taken for dead: the stream is cancelled and everything that
    waits fails, so that nobody waits twice.

    Args:
        address: Where the store is.
        credentials: Of this run; with an identity the connection is encrypted.
        connect_timeout_s: How long to wait for the stream to open.
        ping_s: How often to say something when there is nothing to ask, so that a dead store is
            noticed, and that the store keeps the stream.
        ping_timeout_s: When a store that does not answer this is dead.

    Attributes:
        offers: What the store said when it let this client in.

    Raises:
        StoreError: The store cannot be reached, or does not let this client in.
    """

    def __init__(
        self,
        address: Address,
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
            self._lose(f"{address} did not let us in within {connect_timeout_s:g} s")
        self._watch.start()
        if self._failure is None:
            # A stream is open before the other side has looked at it: ask once to know.
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
        """Whether the other side did not like the token."""

    @abstractmethod
    def _send(self, data: bytes) -> None:
        """Send a request; one thread at a time."""

    @abstractmethod
    def _receive(self) -> Message:
        """Wait for a reply; `StopIteration` at the end."""

    @abstractmethod
    def _interrupt(self) -> None:
        """End the stream under whoever reads."""

    @abstractmethod
    def _cut(self) -> None:
        """Close the connection under a write that waits for a stuck store."""

    @abstractmethod
    def _close_ends(self) -> None:
        """Free what the stream has."""

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
        """Give up what is still open."""
        self._fail(f"the connection to {self._address} was closed", "open a new one")
        current = threading.current_thread()
        for thread in (self._watch, self._thread):
            if thread is not current and thread.ident is not None:
                thread.join(TICK_S * 20)
        with self._writing:
            self._close_ends()

    def _write(self, data: bytes) -> None:
        # That the stream ended is seen here first, but only the reader learns why.
        with suppress(Exception):
            self._send(data)

    def _read(self, credentials: Credentials, timeout_s: float) -> None:
        """Open the stream and hand out replies, in a thread of its own."""
        try:
            self._open(credentials, timeout_s)
            self._opened.set()
            if self._failure is not None:
                # Nobody waits for it any more.
                self._interrupt()
            while True:
                self._deliver(self._receive())
        except StopIteration:
            self._lose(f"{self._address} ended the connection")
        except HeadraceError as error:
            self._fail(f"{self._address} answered nonsense ({error.problem})", error.remedy)
        except Exception as error:
            if self._is_refusal(error):
                problem = f"{self._address} refuses us: it needs the token of its run"
                self._fail(problem, "use the credentials that were made for this run")
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
        """Count down deadlines, in a thread of its own."""
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
        # Whoever holds the lock is writing, which is as good as a ping.
        if self._writing.acquire(blocking=False):
            self._writing.release()
            self.ask({"op": "ping"}, (), self._ping_timeout_s)

    def _lose(self, problem: str) -> None:
        self._end(StoreLostError(problem, _SEE_LOG))

    def _fail(self, problem: str, remedy: str) -> None:
        self._end(StoreError(problem, remedy))

    def _end(self, error: StoreError) -> None:
        """End the stream, once, and fail everything that waits."""
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
    """A stream of Flight to one store; see `StreamChannel`.

    Raises:
        StoreError: The store cannot be reached, or does not let this client in.
        MissingExtraError: pyarrow is not installed.
    """

    def __init__(
        self,
        address: Address,
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
        """Close the connection under a write that waits for a stuck store.

        To cancel the stream does not end such a write. All connections to the store are closed,
        also those of other channels: it is dead for them too.
        """
        for _, peer, sock in connections():
            if peer in self._peers:
                cut(sock)

    def _close_ends(self) -> None:
        for end in (self._writer, self._client):
            _close_quietly(end)
        self._writer = self._client = None


def _reason(error: Exception) -> str:
    """What gRPC says, once."""
    text = str(error).partition(". gRPC client debug context")[0]
    text = text.partition("error, with message: ")[2] or text
    return text.splitlines()[0][:300] if text else type(error).__name__


def _close_quietly(end: Any) -> None:
    if end is not None:
        # What cannot be closed is closed already.
        with suppress(Exception):
            end.close()
