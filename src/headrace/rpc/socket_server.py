"""Raw TCP server besides Flight, without TLS: the same replies with fewer copies.

A client sends its token and receives four magic bytes. Each further message is preceded by its
length: requests as over Flight, replies as a frame followed by the bytes of its arrays
(`framing.py`).
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from headrace.core.errors import SpecError
from headrace.rpc.config import RpcLimits
from headrace.rpc.credentials import Secret
from headrace.rpc.framing import Message, encode_frame
from headrace.rpc.guard import Guard, Stream
from headrace.rpc.open_sockets import cut

ACCEPTED = b"HRW1"
LENGTH = struct.Struct("<I")
MAX_TOKEN_BYTES = 256

# Each unauthenticated peer occupies a thread until the guard closes its connection.
_MAX_UNAUTHENTICATED = 64
_MORE = getattr(socket, "MSG_MORE", 0)


class SocketServer:
    """Answers requests on raw TCP sockets until it is closed; a guard must poll its port."""

    def __init__(
        self,
        answer: Callable[[memoryview], Message],
        token: Secret,
        guard: Guard,
        limits: RpcLimits,
        host: str,
    ) -> None:
        self._answer = answer
        self._token = token
        self._guard = guard
        self._limits = limits
        self._unauthenticated = threading.BoundedSemaphore(_MAX_UNAUTHENTICATED)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="sockets", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more clients; the guard closes open connections."""
        cut(self._listener)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, peer = self._listener.accept()
            except ConnectionError:
                continue
            except OSError:
                return
            if not self._unauthenticated.acquire(blocking=False):
                sock.close()
                continue
            threading.Thread(
                target=self._serve, args=(sock, peer), name=f"client {peer[1]}", daemon=True
            ).start()

    def _serve(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        # Clients that exceed a limit or disconnect get no reply.
        with sock, suppress(OSError, EOFError, SpecError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                is_authenticated = self._has_token(sock)
            finally:
                self._unauthenticated.release()
            if not is_authenticated:
                return
            with self._guard.admit(f"socket:[{peer[0]}]:{peer[1]}") as stream:
                stream.registered = True
                sock.sendall(ACCEPTED)
                while True:
                    # A separate call: no request stays in memory while the client is idle.
                    self._serve_one(stream, sock)

    def _has_token(self, sock: socket.socket) -> bool:
        length = read_length(sock)
        return 0 < length <= MAX_TOKEN_BYTES and self._token.matches(bytes(read(sock, length)))

    def _serve_one(self, stream: Stream, sock: socket.socket) -> None:
        stream.enter("reading")
        length = read_length(sock)
        if length > self._limits.max_request_bytes:
            raise SpecError(f"a request has {length} bytes", "send smaller requests")
        data = read(sock, length)
        stream.enter("working")
        reply = self._answer(data)
        frame = encode_frame(reply.number, reply.fields, reply.arrays)
        stream.enter("writing")
        arrays = [np.ascontiguousarray(array) for array in reply.arrays if array.size]
        sock.sendall(LENGTH.pack(len(frame)) + frame, _MORE if arrays else 0)
        for array in arrays:
            sock.sendall(array.reshape(-1).view(np.uint8).data)


def read_length(sock: socket.socket) -> int:
    """Receive the length of the next message."""
    (length,) = LENGTH.unpack(read(sock, LENGTH.size))
    return int(length)


def read(sock: socket.socket, num_bytes: int) -> memoryview:
    """Receive exactly `num_bytes` bytes; see `fill`."""
    array = np.empty(num_bytes, np.uint8)
    fill(sock, array.data)
    return array.data


def fill(sock: socket.socket, memory: memoryview) -> None:
    """Fill memory with received bytes; raises `EOFError` if the peer closes the connection."""
    while len(memory):
        num = sock.recv_into(memory, len(memory), socket.MSG_WAITALL)
        if num == 0:
            raise EOFError
        memory = memory[num:]
