"""An RPC server on TCP sockets, with TLS or without.

A client sends the token of the run and receives four bytes: accepted, or the reason why not. If it
is accepted, the largest size of a request follows. Then it sends requests, each preceded by its
length. A reply is a length, a frame and the bytes of its arrays (`framing.py`). The requests of a
connection are handled one after the other.

All limits apply while bytes arrive: memory is allocated only for lengths within them, and a
connection that misses a deadline is closed.
"""

from __future__ import annotations

import itertools
import logging
import math
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import numpy as np

from headrace.core.errors import HeadraceError
from headrace.linux.disk import is_full
from headrace.linux.malloc import return_freed_memory
from headrace.rpc.admission import Admission, admission
from headrace.rpc.config import RpcLimits
from headrace.rpc.connection import (
    ACCEPTED,
    LENGTH,
    MAX_TOKEN_BYTES,
    TOO_MANY,
    WRONG_TOKEN,
    Connection,
    Steps,
    read,
    read_length,
)
from headrace.rpc.credentials import Credentials
from headrace.rpc.event_loop import EventLoop, Watched, event_loop
from headrace.rpc.framing import Message, decode_request, encode_frame, number_of

_LOG = logging.getLogger(__name__)

_BACKLOG = 1024

_CLOSE_TIMEOUT_S = 10.0

_FAILED = "the store failed to answer"

# A closed connection releases its descriptor in this time; if no connection can be closed, the
# process' other files have to be.
_RETRY_ACCEPT_S = 0.002
_RETRY_LATER_S = 0.05


class Service(Protocol):
    """Handler of a server's requests."""

    def answer(self, request: Message) -> Message:
        """Handle a request; its `stream` identifies the connection."""
        ...

    def end_stream(self, stream: int) -> None:
        """Handle the end of a connection."""
        ...

    def count(self, what: str) -> None:
        """Count an event: `refused`, `failed`, `cut`."""
        ...

    def close(self) -> None:
        """Release all waiting requests."""
        ...


class RpcServer:
    """Serves requests until it is closed.

    Args:
        service: Handles the requests.
        credentials: Credentials of the run. With an identity, connections use TLS, and clients must
            present a certificate of the run.
        host: Address to listen on.
        port: 0 for any free port.
        limits: Limits for clients.
        loop: Event loop; that of the process by default.
        admitting: Connections without the token; those of the process by default.

    Attributes:
        port: Port that the server listens on.
    """

    def __init__(
        self,
        service: Service,
        credentials: Credentials,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: RpcLimits | None = None,
        loop: EventLoop | None = None,
        admitting: Admission | None = None,
    ) -> None:
        self._service = service
        self._credentials = credentials
        self._limits = limits or RpcLimits()
        self._loop = loop or event_loop()
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._streams: set[_Stream] = set()
        self._unauthenticated: set[_Stream] = set()
        self._admission = admission() if admitting is None else admitting
        self._is_closed = False
        identity = credentials.identity
        self._context = None if identity is None else identity.server_context
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server(
            (host, port),
            family=family,
            backlog=_BACKLOG,
            dualstack_ipv6=host == "::" and socket.has_dualstack_ipv6(),
        )
        self.port: int = listener.getsockname()[1]
        self._listener = _Listener(listener, self._admit, self._admission)
        self._loop.watch(self._listener)

    def close(self) -> None:
        """Stop serving; open connections are closed."""
        self._service.close()
        self._listener.cut()
        with self._ended:
            self._is_closed = True
            for stream in (*self._streams, *self._unauthenticated):
                stream.cut()
            self._ended.wait_for(
                lambda: not self._streams and not self._unauthenticated, _CLOSE_TIMEOUT_S
            )

    def _admit(self, sock: socket.socket, host: str) -> None:
        """Serve a new connection."""
        if self._context is not None:
            sock = self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        stream = _Stream(self, sock)
        with self._lock:
            self._unauthenticated.add(stream)
            if self._is_closed:
                stream.cut()
        self._admission.add(stream, host)
        try:
            self._loop.watch(stream)
        except OSError:
            stream.release()

    def _authenticate(self, stream: _Stream, token: bytes) -> bytes:
        """Check the token; returns the four bytes of the reply."""
        if not self._credentials.token.matches(token):
            return WRONG_TOKEN
        self._admission.remove(stream)
        with self._lock:
            self._unauthenticated.discard(stream)
            if len(self._streams) >= self._limits.max_streams:
                return TOO_MANY
            self._streams.add(stream)
        return ACCEPTED

    def _forget(self, stream: _Stream) -> None:
        self._admission.remove(stream)
        with self._ended:
            was_accepted = stream in self._streams
            self._streams.discard(stream)
            self._unauthenticated.discard(stream)
            self._ended.notify_all()
        if was_accepted:
            self._service.end_stream(stream.number)
            # Requests of a client may have been large: return their memory, soon.
            self._listener.deadline_s = self._loop.clock()


class _Listener(Watched):
    """Accepts connections.

    Args:
        sock: Listening socket.
        admit: Called with each new connection and the host of its peer.
        admission: Connections without the token.
    """

    def __init__(
        self,
        sock: socket.socket,
        admit: Callable[[socket.socket, str], None],
        admission: Admission,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._admit, self._admission = admit, admission
        self._is_cut = threading.Event()

    def fileno(self) -> int:
        """The file descriptor."""
        return self._socket.fileno()

    def handle(self) -> bool:
        """Accept the connections that wait."""
        while not self._is_cut.is_set():
            if self._admission.is_behind:
                self._is_cut.wait(_RETRY_ACCEPT_S)
                continue
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                return True
            except ConnectionError:
                continue
            except OSError:
                # Too few descriptors or too little memory: peers of the run come first.
                self._is_cut.wait(_RETRY_ACCEPT_S if self._admission.evict() else _RETRY_LATER_S)
                continue
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._admit(sock, address[0])
            except OSError:
                sock.close()
            except Exception:
                _LOG.exception("a connection was not accepted")
                sock.close()
        return False

    def expire(self, now_s: float) -> None:
        """Return freed memory to the system."""
        self.deadline_s = math.inf
        return_freed_memory()

    def cut(self) -> None:
        """Accept no more connections."""
        self._is_cut.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the socket."""
        self._socket.close()


class _Stream(Connection):
    """Connection of one client."""

    _numbers = itertools.count(1)

    def __init__(self, server: RpcServer, sock: socket.socket) -> None:
        self._server = server
        self.number = next(self._numbers)
        self._opened_s = server._loop.clock()
        self.deadline_s = self._opened_s + server._limits.handshake_s
        super().__init__(sock)

    def expire(self, now_s: float) -> None:
        """Close a connection that has missed its deadline."""
        self.deadline_s = math.inf
        self.evict()

    def evict(self) -> None:
        """Close the connection for another one."""
        self._server._service.count("cut")
        self.cut()

    def _receive(self) -> Steps:
        """Check the token and answer requests until the client disconnects."""
        limits = self._server._limits
        length = yield from read_length()
        if not 0 < length <= MAX_TOKEN_BYTES:
            return
        verdict = self._server._authenticate(self, bytes((yield from read(length))))
        if verdict != ACCEPTED:
            self.send([verdict])
            return
        self.send([verdict + LENGTH.pack(limits.max_request_bytes)])
        while True:
            self._set_deadline(limits.idle_s)
            length = yield from read_length()
            if length > limits.max_request_bytes:
                return
            data = yield from read(length)
            self._set_deadline(math.inf)
            pieces = encode_reply(self._server._service, data, self.number)
            del data
            self._set_deadline(limits.stall_s)
            self.send(pieces)
            # No request or reply stays in memory while the client is idle.
            del pieces

    def _end(self, failure: Exception | None) -> None:
        if failure is not None and not isinstance(failure, OSError):
            _LOG.error("a connection failed: %r", failure)
        self._server._forget(self)

    def _set_deadline(self, after_s: float) -> None:
        lifetime_s = self._server._limits.stream_s
        end_s = math.inf if lifetime_s is None else self._opened_s + lifetime_s
        self.deadline_s = min(self._server._loop.clock() + after_s, end_s)


def answer(service: Service, data: memoryview, stream: int = 0) -> Message:
    """Handle an encoded request; never raises."""
    number = number_of(data)
    try:
        return service.answer(decode_request(data, stream))
    except HeadraceError as error:
        service.count("refused")
        return _refusal(number, error.problem, error.remedy)
    except Exception as error:
        if is_full(error):
            service.count("refused")
            return _disk_full(number, error)
        # A bug must not end the store; the client gets no details.
        _LOG.exception("a request failed")
        service.count("failed")
        return _refusal(number, _FAILED, "check the store's log")


def encode_reply(service: Service, data: memoryview, stream: int) -> list[bytes | memoryview]:
    """Handle an encoded request and encode the reply; never raises."""
    reply = answer(service, data, stream)
    try:
        frame = encode_frame(reply.number, reply.fields, reply.arrays)
    except Exception:
        _LOG.exception("a reply was not encoded")
        service.count("failed")
        reply = _refusal(reply.number, _FAILED, "check the store's log")
        frame = encode_frame(reply.number, reply.fields, ())
    return [LENGTH.pack(len(frame)) + frame, *map(_bytes_of, reply.arrays)]


def _refusal(number: int, problem: str, remedy: str) -> Message:
    return Message(number, {"problem": problem, "remedy": remedy})


def _disk_full(number: int, error: Exception) -> Message:
    name = getattr(error, "filename", None)
    remedy = "free some space there, then resume the run"
    full = _refusal(number, f"no space left on the disk to write {name or 'a file'}", remedy)
    return Message(number, {**full.fields, "is_full": True})


def _bytes_of(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
