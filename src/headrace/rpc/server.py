"""An RPC server over Arrow Flight and raw TCP sockets.

Of Flight only `DoExchange` is used; all other operations are refused. A client first sends an empty
schema, so that Arrow never unpacks a client's data. Each request is one metadata message
(`framing.py`), answered by a record batch whose columns hold the reply's arrays.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, NoReturn, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import flight

from headrace.core.errors import HeadraceError, SpecError
from headrace.rpc.config import RpcLimits
from headrace.rpc.credentials import Credentials, Secret
from headrace.rpc.framing import (
    MAX_ARRAYS,
    Fields,
    Message,
    decode_request,
    encode_frame,
    number_of,
)
from headrace.rpc.guard import FACTOR_CUT, Guard, Stream
from headrace.rpc.socket_server import SocketServer

_LOG = logging.getLogger(__name__)

TOKEN_HEADER = "x-headrace-token"
REQUEST_SCHEMA = pa.schema([])
REPLY_SCHEMA = pa.schema([(f"array{i}", pa.binary()) for i in range(MAX_ARRAYS)])


class Service(Protocol):
    """Handler of a server's requests.

    Attributes:
        offers: Fields that describe other transports to clients.
    """

    offers: Fields

    def answer(self, request: Message) -> Message:
        """Handle a request."""
        ...

    def count(self, what: str) -> None:
        """Count an event: `refused`, `failed`."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class RpcServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves requests until it is closed.

    Args:
        service: Handles the requests.
        credentials: Credentials of the run. With an identity, connections use TLS, and clients must
            present a certificate of the run.
        host: Address to listen on.
        port: 0 for any free port; see `port`.
        limits: Limits for clients.
        sockets: Whether to offer a raw TCP socket besides Flight; ignored with TLS.
    """

    def __init__(
        self,
        service: Service,
        credentials: Credentials,
        host: str = "127.0.0.1",
        port: int = 0,
        limits: RpcLimits | None = None,
        sockets: bool = False,
    ) -> None:
        self._service = service
        self._limits = limits or RpcLimits()
        self._guard = Guard(self._limits)
        identity = credentials.identity
        options: dict[str, Any] = {}
        if identity is not None:
            options = {
                "tls_certificates": [(identity.certificate, identity.key.reveal())],
                "verify_client": True,
                "root_certificates": identity.authority,
            }
        scheme = "grpc+tcp" if identity is None else "grpc+tls"
        bracketed = f"[{host}]" if ":" in host else host
        super().__init__(
            f"{scheme}://{bracketed}:{port}",
            middleware={"token": _TokenCheck(credentials.token)},
            **options,
        )
        self._sockets: SocketServer | None = None
        ports = [self.port]
        if sockets and identity is None:
            self._sockets = SocketServer(
                self._answer, credentials.token, self._guard, self._limits, host
            )
            ports.append(self._sockets.port)
            service.offers = {"socket_port": self._sockets.port}
        self._ports = tuple(ports)
        self._guard.start(*ports)

    def close(self) -> None:
        """Stop serving; open streams end with an error."""
        self._service.close()
        if self._sockets is not None:
            self._sockets.close()
        self._guard.close()
        self._guard.cut_all(*self._ports)
        self.shutdown()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answer the requests of a client, one after the other, until it closes the stream."""
        try:
            with self._guard.admit(context.peer()) as stream:
                if reader.schema != REQUEST_SCHEMA:
                    raise SpecError("a stream must begin with an empty schema", "use StoreClient")
                stream.registered = True
                writer.begin(REPLY_SCHEMA)
                self._serve(stream, reader, writer)
        except HeadraceError as error:
            raise flight.FlightServerError(str(error)) from None

    def _serve(self, stream: Stream, reader: Any, writer: Any) -> None:
        with suppress(StopIteration):
            while True:
                # A separate call: no request stays in memory while the client is idle.
                self._serve_one(stream, reader, writer)

    def _serve_one(self, stream: Stream, reader: Any, writer: Any) -> None:
        stream.enter("reading")
        chunk = reader.read_chunk()
        data = chunk.app_metadata
        # Arrived faster than the guard polls.
        if data is not None and len(data) > FACTOR_CUT * self._limits.max_request_bytes:
            raise _too_large(len(data), self._limits)
        stream.enter("working")
        is_request = chunk.data is None and data is not None
        reply = self._answer(memoryview(data) if is_request else None)
        frame = encode_frame(reply.number, reply.fields, reply.arrays)
        stream.enter("writing")
        # Blocks until the client reads, so a slow client holds at most one reply.
        writer.write_with_metadata(to_batch(reply), frame)

    def _answer(self, data: memoryview | None) -> Message:
        return answer(self._service, self._limits, data)

    def list_flights(self, context: Any, criteria: Any) -> NoReturn:
        """Refuse."""
        raise _unused()

    def get_flight_info(self, context: Any, descriptor: Any) -> NoReturn:
        """Refuse."""
        raise _unused()

    def get_schema(self, context: Any, descriptor: Any) -> NoReturn:
        """Refuse."""
        raise _unused()

    def do_get(self, context: Any, ticket: Any) -> NoReturn:
        """Refuse."""
        raise _unused()

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> NoReturn:
        """Refuse."""
        raise _unused()

    def do_action(self, context: Any, action: Any) -> NoReturn:
        """Refuse."""
        raise _unused()

    def list_actions(self, context: Any) -> NoReturn:
        """Refuse."""
        raise _unused()


def answer(service: Service, limits: RpcLimits, data: memoryview | None) -> Message:
    """Handle an encoded request, None if the received message was no request; never raises."""
    number = 0
    try:
        if data is None:
            raise SpecError("a request must be one metadata message", "use StoreClient")
        number = number_of(data)
        if len(data) > limits.max_request_bytes:
            raise _too_large(len(data), limits)
        return service.answer(decode_request(data))
    except HeadraceError as error:
        service.count("refused")
        return _refusal(number, error.problem, error.remedy)
    except Exception:
        # A bug must not end the store; the client gets no details.
        _LOG.exception("a request failed")
        service.count("failed")
        return _refusal(number, "the store failed to answer", "check the store's log")


def _too_large(num_bytes: int, limits: RpcLimits) -> SpecError:
    return SpecError(
        f"the request has {num_bytes} bytes, at most {limits.max_request_bytes} are allowed",
        "send smaller requests",
    )


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Rejects calls without the run's token."""

    def __init__(self, token: Secret) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: Any, headers: Any) -> None:
        given = headers.get(TOKEN_HEADER, [])
        given = [value.encode() if isinstance(value, str) else value for value in given]
        if len(given) != 1 or not self._token.matches(given[0]):
            raise flight.FlightUnauthenticatedError("this store requires the token of its run")


def to_batch(reply: Message) -> pa.RecordBatch:
    """Wrap a reply's arrays in a record batch without a copy: one row, a column per array."""
    columns = []
    for i in range(MAX_ARRAYS):
        array = np.ascontiguousarray(reply.arrays[i]) if i < len(reply.arrays) else _NOTHING
        ends = pa.py_buffer(np.array([0, array.nbytes], np.int32))
        columns.append(pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(array)]))
    return pa.RecordBatch.from_arrays(columns, schema=REPLY_SCHEMA)


_NOTHING = np.empty(0, np.uint8)


def _refusal(number: int, problem: str, remedy: str) -> Message:
    return Message(number, {"problem": problem, "remedy": remedy})


def _unused() -> Exception:
    error: Exception = flight.FlightServerError("a graph store supports DoExchange only")
    return error
