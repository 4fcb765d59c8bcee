"""A server of requests, over Flight and bare sockets.

One operation of Flight is used, `DoExchange`; all others refuse. A client first sends an empty
schema, so that Arrow never unpacks a client's data; each request then is one piece of metadata
(`messages.py`), answered by a record batch whose columns hold the reply's arrays.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, NoReturn, Protocol

import numpy as np
import pyarrow as pa
from pyarrow import flight

from headrace.core.errors import HeadraceError, SpecError
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
from headrace.rpc.limits import RpcLimits
from headrace.rpc.socket_server import SocketServer

_LOG = logging.getLogger(__name__)

TOKEN_HEADER = "x-headrace-token"
REQUEST_SCHEMA = pa.schema([])
REPLY_SCHEMA = pa.schema([(f"array{i}", pa.binary()) for i in range(MAX_ARRAYS)])


class Service(Protocol):
    """What a server answers with.

    Attributes:
        offers: What a client is told of other ways to ask.
    """

    offers: Fields

    def answer(self, request: Message) -> Message:
        """The reply to a request."""
        ...

    def count(self, what: str) -> None:
        """Count an event: `refused`, `failed`."""
        ...

    def close(self) -> None:
        """Give up what is held."""
        ...


class RpcServer(flight.FlightServerBase):  # type: ignore[misc]
    """Answers requests until it is closed.

    Args:
        service: Answers them.
        credentials: Who may ask. With an identity everything is encrypted, and clients must show
            a certificate of the run before they can say anything.
        host: Address to listen on.
        port: 0 for any that is free; see `port`.
        limits: What clients may ask for.
        sockets: Whether to offer a bare socket beside Flight; there is none if everything is
            encrypted.
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
        """Stop serving; streams that are open end with an error."""
        self._service.close()
        if self._sockets is not None:
            self._sockets.close()
        self._guard.close()
        self._guard.cut_all(*self._ports)
        self.shutdown()

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Answer a client's requests, one after the other, until it has no more."""
        try:
            with self._guard.admit(context.peer()) as stream:
                if reader.schema != REQUEST_SCHEMA:
                    raise SpecError("a stream begins with an empty schema", "use StoreClient")
                stream.registered = True
                writer.begin(REPLY_SCHEMA)
                self._serve(stream, reader, writer)
        except HeadraceError as error:
            raise flight.FlightServerError(str(error)) from None

    def _serve(self, stream: Stream, reader: Any, writer: Any) -> None:
        with suppress(StopIteration):
            while True:
                # In a call of its own, so that nothing of it is kept while the client is silent.
                self._serve_one(stream, reader, writer)

    def _serve_one(self, stream: Stream, reader: Any, writer: Any) -> None:
        stream.enter("reading")
        chunk = reader.read_chunk()
        data = chunk.app_metadata
        # The guard would have cut this, had it come more slowly.
        if data is not None and len(data) > FACTOR_CUT * self._limits.max_request_bytes:
            raise _too_large(len(data), self._limits)
        stream.enter("working")
        is_request = chunk.data is None and data is not None
        reply = self._answer(memoryview(data) if is_request else None)
        frame = encode_frame(reply.number, reply.fields, reply.arrays)
        stream.enter("writing")
        # Waits until the client has room, so a slow one holds one reply and no more.
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
    """The reply to a request as it came over the wire; it never fails.

    Args:
        service: What can be asked for.
        limits: What one request may be.
        data: The request; none if something else came.
    """
    number = 0
    try:
        if data is None:
            raise SpecError("a request is one piece of metadata", "use StoreClient")
        number = number_of(data)
        if len(data) > limits.max_request_bytes:
            raise _too_large(len(data), limits)
        return service.answer(decode_request(data))
    except HeadraceError as error:
        service.count("refused")
        return _refusal(number, error.problem, error.remedy)
    except Exception:
        # A mistake of ours must not end the store; the client learns no more than this.
        _LOG.exception("a request failed")
        service.count("failed")
        return _refusal(number, "the store failed to answer", "see the store's log")


def _too_large(num_bytes: int, limits: RpcLimits) -> SpecError:
    return SpecError(
        f"the request has {num_bytes} bytes, at most {limits.max_request_bytes} are allowed",
        "send less at once",
    )


class _TokenCheck(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets a call begin only with the run's token."""

    def __init__(self, token: Secret) -> None:
        super().__init__()
        self._token = token

    def start_call(self, info: Any, headers: Any) -> None:
        given = headers.get(TOKEN_HEADER, [])
        given = [value.encode() if isinstance(value, str) else value for value in given]
        if len(given) != 1 or not self._token.matches(given[0]):
            raise flight.FlightUnauthenticatedError("this store needs the token of its run")


def to_batch(reply: Message) -> pa.RecordBatch:
    """Show a reply's arrays to Arrow without a copy: one row, a column per array."""
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
    error: Exception = flight.FlightServerError("a graph store answers DoExchange only")
    return error
