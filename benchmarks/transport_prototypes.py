"""Transports that `transports.py` compares, each with the messages of `headrace.rpc`.

    python benchmarks/transport_prototypes.py KIND FOLDER

serves rows of a random array until its input ends, and prints the port. `asyncio` uses
`BufferedProtocol` and handles requests in the thread of its loop, which only suits handlers that
never block; `uvloop` is the same with another loop. `selector` waits in one thread and handles
requests in a pool. `epoll` is what `headrace.rpc` does. `flight` is Arrow Flight's `DoExchange`.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import resource
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from headrace.linux.malloc import keep_freed_memory
from headrace.rpc.client import Channel, RpcChannel
from headrace.rpc.config import RpcLimits, TaskAddress
from headrace.rpc.connection import ACCEPTED, LENGTH
from headrace.rpc.credentials import Credentials
from headrace.rpc.event_loop import EventLoop
from headrace.rpc.framing import (
    Fields,
    Message,
    decode_frame,
    decode_request,
    encode_frame,
    encode_request,
)
from headrace.rpc.server import RpcServer
from headrace.rpc.service import RpcService

KINDS = ("asyncio", "uvloop", "selector", "epoll", "flight")
HOST = "127.0.0.1"
NUM_NODES, WIDTH = 200_000, 128
MAX_REQUEST_BYTES = 8 << 20


class Rows(RpcService):
    """Answers with rows of an array."""

    def __init__(self) -> None:
        super().__init__()
        self._rows = np.zeros((NUM_NODES, WIDTH), np.float32)
        self._rows[:] = np.arange(NUM_NODES, dtype=np.float32)[:, None]

    def answer(self, request: Message) -> Message:
        if not request.arrays:
            return Message(request.number)
        ids = request.arrays[0]
        out = np.empty((len(ids), WIDTH), np.float32)
        np.take(self._rows, ids, axis=0, out=out, mode="clip")
        return Message(request.number, {"dtype": "float32"}, (out,))


class SelectorLoop(EventLoop):
    """One thread waits; a pool handles what it finds."""

    def __init__(self) -> None:
        super().__init__()
        self._pool = ThreadPoolExecutor(32)

    def _run(self) -> None:
        while True:
            ((number, _),) = self._epoll.poll(maxevents=1)
            watched = self._watched.get(number)
            if watched is None:
                return
            self._pool.submit(self._handle, number, watched)


class _Buffered(asyncio.BufferedProtocol):
    """Receives messages: a length, bytes of a frame, and on the client's side arrays."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.set_write_buffer_limits(64 << 20)
        self._steps = self.steps()
        self._left: memoryview = next(self._steps)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._left

    def buffer_updated(self, num: int) -> None:
        self._left = self._left[num:]
        while not self._left:
            try:
                self._left = next(self._steps)
            except StopIteration:
                self.transport.close()
                self._left = memoryview(bytearray(1))

    def steps(self) -> Any:
        raise NotImplementedError

    def read(self, num_bytes: int) -> Any:
        memory = np.empty(num_bytes, np.uint8).data
        yield memory
        return memory

    def length(self) -> Any:
        (length,) = LENGTH.unpack((yield from self.read(LENGTH.size)))
        return length


class _AsyncServer(_Buffered):
    def __init__(self, service: Rows, token: bytes) -> None:
        self._service, self._token = service, token

    def steps(self) -> Any:
        token = yield from self.read((yield from self.length()))
        if bytes(token) != self._token:
            return
        self.transport.write(ACCEPTED)
        while True:
            length = yield from self.length()
            if length > MAX_REQUEST_BYTES:
                return
            reply = self._service.answer(decode_request((yield from self.read(length))))
            frame = encode_frame(reply.number, reply.fields, reply.arrays)
            self.transport.write(LENGTH.pack(len(frame)) + frame)
            for array in reply.arrays:
                self.transport.write(array.reshape(-1).view(np.uint8).data)


class _AsyncClient(_Buffered):
    def __init__(self, token: bytes) -> None:
        self._token = token
        self.accepted: Future[None] = Future()
        self.waiting: dict[int, Future[Message]] = {}

    def steps(self) -> Any:
        self.transport.write(LENGTH.pack(len(self._token)) + self._token)
        yield from self.read(len(ACCEPTED))
        self.accepted.set_result(None)
        while True:
            reply = decode_frame((yield from self.read((yield from self.length()))))
            for array in reply.arrays:
                yield array.reshape(-1).view(np.uint8).data
            self.waiting.pop(reply.number).set_result(reply)

    def connection_lost(self, error: Exception | None) -> None:
        futures: list[Future[Any]] = [self.accepted, *self.waiting.values()]
        for future in futures:
            if not future.done():
                future.set_exception(ConnectionError("closed"))


class AsyncChannel:
    """A channel on an asyncio loop that runs in a thread."""

    def __init__(self, loop: Any, port: int, credentials: Credentials) -> None:
        self._loop, self._lock, self._number = loop, threading.Lock(), 0
        identity = credentials.identity
        tls = {"ssl": identity.client_context} if identity else {}
        made = loop.create_connection(
            lambda: _AsyncClient(credentials.token.reveal()), HOST, port, **tls
        )
        _, self._protocol = asyncio.run_coroutine_threadsafe(made, loop).result()
        self._protocol.accepted.result(10)

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        future: Future[Message] = Future()
        with self._lock:
            self._number += 1
            number = self._number
        data = encode_request(number, fields, arrays)
        self._protocol.waiting[number] = future
        self._loop.call_soon_threadsafe(
            self._protocol.transport.write, LENGTH.pack(len(data)) + data
        )
        return future

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._protocol.transport.close)


def async_loop(kind: str) -> Any:
    """A loop in a thread."""
    module: Any = importlib.import_module(kind)
    loop = module.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


class FlightChannel:
    """A `DoExchange` stream; gRPC needs a thread per stream to read from it."""

    def __init__(self, port: int, credentials: Credentials) -> None:
        import pyarrow as pa
        from pyarrow import flight

        identity = credentials.identity
        tls: dict[str, Any] = {}
        if identity is not None:
            tls = {
                "tls_root_certs": identity.authority,
                "cert_chain": identity.certificate,
                "private_key": identity.key.reveal(),
            }
        scheme = "grpc+tls" if tls else "grpc+tcp"
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._client = flight.FlightClient(
            f"{scheme}://{HOST}:{port}", generic_options=options, **tls
        )
        self._writer, self._reader = self._client.do_exchange(
            flight.FlightDescriptor.for_command(b"")
        )
        self._writer.begin(pa.schema([]))
        self._waiting: dict[int, Future[Message]] = {}
        self._lock, self._number = threading.Lock(), 0
        threading.Thread(target=self._read, daemon=True).start()
        self.ask({"op": "ping"}, (), 10).result(10)

    def ask(
        self, fields: Fields, arrays: Sequence[np.ndarray], timeout_s: float
    ) -> Future[Message]:
        future: Future[Message] = Future()
        with self._lock:
            self._number += 1
            self._waiting[self._number] = future
            with suppress(Exception):
                self._writer.write_metadata(encode_request(self._number, fields, arrays))
        return future

    def _read(self) -> None:
        try:
            while True:
                chunk = self._reader.read_chunk()
                reply = decode_frame(memoryview(chunk.app_metadata))
                arrays = [
                    np.frombuffer(column.buffers()[2], array.dtype).reshape(array.shape)
                    for column, array in zip(chunk.data.columns, reply.arrays, strict=False)
                ]
                self._waiting.pop(reply.number).set_result(
                    Message(reply.number, reply.fields, tuple(arrays))
                )
        except Exception as error:
            for future in self._waiting.values():
                future.set_exception(ConnectionError(str(error)[:80]))

    def close(self) -> None:
        self._reader.cancel()
        with suppress(Exception):
            self._client.close()


def write_only(port: int) -> Any:
    """A stream of somebody who never reads."""
    import pyarrow as pa
    from pyarrow import flight

    client = flight.FlightClient(f"grpc+tcp://{HOST}:{port}")
    writer, _ = client.do_exchange(flight.FlightDescriptor.for_command(b""))
    writer.begin(pa.schema([]))
    return writer


def allow_many_files() -> None:
    """Streams need more descriptors than a process has by default."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve_flight(service: Rows, credentials: Credentials) -> Any:
    import pyarrow as pa
    from pyarrow import flight

    schema = pa.schema([("array", pa.binary())])

    class Server(flight.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            writer.begin(schema)
            with suppress(StopIteration):
                while True:
                    data = reader.read_chunk().app_metadata
                    reply = service.answer(decode_request(memoryview(data)))
                    array = reply.arrays[0] if reply.arrays else np.empty(0, np.uint8)
                    ends = pa.py_buffer(np.array([0, array.nbytes], np.int32))
                    made = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(array)])
                    frame = encode_frame(reply.number, reply.fields, reply.arrays)
                    writer.write_with_metadata(
                        pa.RecordBatch.from_arrays([made], schema=schema), frame
                    )

    identity = credentials.identity
    options: dict[str, Any] = {}
    if identity is not None:
        options = {
            "tls_certificates": [(identity.certificate, identity.key.reveal())],
            "verify_client": True,
            "root_certificates": identity.authority,
        }
    scheme = "grpc+tls" if options else "grpc+tcp"
    return Server(f"{scheme}://{HOST}:0", **options)


class Connector:
    """Opens channels of one kind from this process."""

    def __init__(self, kind: str, port: int, credentials: Credentials) -> None:
        self._kind, self._port, self._credentials = kind, port, credentials
        self._loop: Any = None
        if kind in ("asyncio", "uvloop"):
            self._loop = async_loop(kind)
        elif kind == "selector":
            self._loop = SelectorLoop()

    def connect(self) -> Channel:
        if self._kind == "flight":
            return FlightChannel(self._port, self._credentials)
        if self._kind in ("asyncio", "uvloop"):
            return AsyncChannel(self._loop, self._port, self._credentials)
        address = TaskAddress(task="rows", machine="here", host=HOST, port=self._port)
        return RpcChannel(address, self._credentials, loop=self._loop)


def serve(kind: str, folder: Path) -> None:
    """Serve until the input ends."""
    keep_freed_memory()
    allow_many_files()
    service, credentials = Rows(), Credentials.load(folder / "server")
    kept: Any = None
    if kind == "flight":
        kept = serve_flight(service, credentials)
        port = kept.port
    elif kind in ("asyncio", "uvloop"):
        identity = credentials.identity
        tls = {"ssl": identity.server_context} if identity else {}
        loop = async_loop(kind)
        made = loop.create_server(
            lambda: _AsyncServer(service, credentials.token.reveal()), HOST, 0, **tls, backlog=1024
        )
        kept = asyncio.run_coroutine_threadsafe(made, loop).result()
        port = kept.sockets[0].getsockname()[1]
    else:
        limits = RpcLimits(max_request_bytes=MAX_REQUEST_BYTES, max_streams=4096)
        loop = SelectorLoop() if kind == "selector" else None
        kept = RpcServer(service, credentials, HOST, limits=limits, loop=loop)
        port = kept.port
    print(port, flush=True)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]))
