"""A connection that never blocks on a peer that sends slowly, with TLS or without."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from abc import abstractmethod
from collections.abc import Generator, Sequence
from contextlib import nullcontext, suppress

import numpy as np

from headrace.rpc.event_loop import READABLE, WRITABLE, Watched

LENGTH = struct.Struct("<I")
"""Precedes every message."""

MAX_TOKEN_BYTES = 256

ACCEPTED = b"HRW1"
"""Reply to the token of the run, followed by the largest size of a request.

A server closes the connection after `WRONG_TOKEN` and `TOO_MANY`.
"""
WRONG_TOKEN = b"HRWT"
TOO_MANY = b"HRWM"

Steps = Generator[memoryview, None, None]
"""Yields memory to be filled with received bytes, and continues when it is full."""

_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

# Size of a TLS record; pieces that fit into one are joined.
_RECORD_BYTES = 1 << 14


class Connection(Watched):
    """Receives bytes as an event loop reports them, and sends from any thread.

    Args:
        sock: Connected socket; becomes non-blocking.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._steps = self._receive()
        self._left = memoryview(b"")
        self._failure: Exception | None = None
        self._is_cut = False
        self._writing = threading.Lock()
        self._closing = threading.Lock()
        # OpenSSL does not allow a read and a write of one connection at the same time.
        self._tls = threading.Lock() if isinstance(sock, ssl.SSLSocket) else None
        self._needs_handshake = isinstance(sock, ssl.SSLSocket) and sock.version() is None

    @abstractmethod
    def _receive(self) -> Steps:
        """Handle what the peer sends."""

    @abstractmethod
    def _end(self, failure: Exception | None) -> None:
        """Handle the end of the connection; without a failure, one side has closed it."""

    def fileno(self) -> int:
        """The file descriptor."""
        return self._socket.fileno()

    def handle(self) -> bool:
        """Receive until the peer has sent no more."""
        try:
            if self._needs_handshake:
                self._shake_hands()
            while not self._is_cut:
                self._fill()
                self._left = next(self._steps)
        except ssl.SSLWantWriteError:
            self.events = WRITABLE
            return True
        except _WOULD_BLOCK:
            self.events = READABLE
            return True
        except (EOFError, StopIteration):
            pass
        except Exception as error:
            self._failure = error
        return False

    def cut(self) -> None:
        """End the connection; threads that receive or send return."""
        self._is_cut = True
        # Not that of SSLSocket, which would let other threads go on without encryption.
        with self._closing, suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the socket."""
        self.cut()
        with self._writing, self._closing:
            self._socket.close()
        self._steps.close()
        failure, self._failure = self._failure, None
        if failure is not None:
            # Its frames keep the last message in memory.
            failure.__traceback__ = None
        self._end(failure)

    def send(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send all pieces, waiting for the peer to read.

        Raises:
            OSError: The connection has ended.
        """
        with self._writing:
            if self._is_cut:
                raise BrokenPipeError
            try:
                if self._tls is None:
                    self._send_plain([memoryview(piece) for piece in pieces])
                else:
                    self._send_encrypted(pieces)
            except BaseException:
                # What follows part of a message would be taken for its rest.
                self.cut()
                raise

    def try_send(self, data: bytes) -> bool:
        """Send a small message without waiting; False if another thread is sending.

        Ends the connection if the peer has not read for so long that no room is left.
        """
        if not self._writing.acquire(blocking=False):
            return False
        try:
            with self._tls or nullcontext():
                num = self._socket.send(data)
        except OSError:
            num = 0
        finally:
            self._writing.release()
        if num < len(data):
            self.cut()
        return True

    def _shake_hands(self) -> None:
        assert isinstance(self._socket, ssl.SSLSocket)
        self._socket.do_handshake()
        self._needs_handshake = False

    def _fill(self) -> None:
        """Receive into the memory that the next step needs."""
        left = self._left
        while left:
            if self._tls is None:
                num = self._socket.recv_into(left)
            else:
                with self._tls:
                    num = self._socket.recv_into(left)
            if num == 0:
                raise EOFError
            self._left = left = left[num:]

    def _send_plain(self, left: list[memoryview]) -> None:
        while left:
            try:
                num = self._socket.sendmsg(left)
            except BlockingIOError:
                self._await_writable()
                continue
            while left and num >= len(left[0]):
                num -= len(left.pop(0))
            if num:
                left[0] = left[0][num:]

    def _send_encrypted(self, pieces: Sequence[bytes | memoryview]) -> None:
        assert self._tls is not None
        if sum(map(len, pieces)) <= _RECORD_BYTES:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            left = memoryview(piece)
            while left:
                try:
                    with self._tls:
                        left = left[self._socket.send(left) :]
                except ssl.SSLWantWriteError:
                    self._await_writable()

    def _await_writable(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        poll.poll()  # returns after `cut`, too


def read_length() -> Generator[memoryview, None, int]:
    """Receive the length of the next message."""
    data = bytearray(LENGTH.size)
    yield memoryview(data)
    (length,) = LENGTH.unpack(data)
    return int(length)


def read(num_bytes: int) -> Generator[memoryview, None, memoryview]:
    """Receive exactly `num_bytes` bytes; only received ones use memory."""
    memory = np.empty(num_bytes, np.uint8).data
    yield memory
    return memory
