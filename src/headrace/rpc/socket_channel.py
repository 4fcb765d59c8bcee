"""Raw TCP client channel, and the choice of a transport."""

from __future__ import annotations

import socket
from contextlib import suppress

from headrace.rpc.channel import Channel, FlightChannel, StreamChannel
from headrace.rpc.config import TaskAddress
from headrace.rpc.credentials import Credentials
from headrace.rpc.errors import StoreError
from headrace.rpc.framing import MAX_FRAME_BYTES, Message, receive_reply
from headrace.rpc.open_sockets import cut
from headrace.rpc.socket_server import ACCEPTED, LENGTH, fill, read, read_length

_MORE = getattr(socket, "MSG_MORE", 0)


class SocketChannel(StreamChannel):
    """A raw TCP socket to a store; see `StreamChannel`."""

    _socket: socket.socket | None = None

    def _open(self, credentials: Credentials, timeout_s: float) -> None:
        sock = socket.create_connection((self._address.host, self._address.port), timeout_s)
        self._socket = sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        token = credentials.token.reveal()
        try:
            sock.sendall(LENGTH.pack(len(token)) + token)
            reply = bytes(read(sock, len(ACCEPTED)))
        except (EOFError, OSError):
            reply = b""
        if reply != ACCEPTED:
            self._close_ends()
            raise PermissionError
        sock.settimeout(None)

    def _is_refusal(self, error: Exception) -> bool:
        return isinstance(error, PermissionError)

    def _send(self, data: bytes) -> None:
        assert self._socket is not None
        self._socket.sendall(LENGTH.pack(len(data)), _MORE)
        self._socket.sendall(data)

    def _receive(self) -> Message:
        sock = self._socket
        assert sock is not None
        try:
            length = read_length(sock)
            if length > MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {length} bytes")
            return receive_reply(read(sock, length), lambda memory: fill(sock, memory))
        except EOFError:
            raise StopIteration from None

    def _interrupt(self) -> None:
        if self._socket is not None:
            cut(self._socket)

    def _cut(self) -> None:
        self._interrupt()

    def _close_ends(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def open_channel(
    address: TaskAddress, credentials: Credentials, connect_timeout_s: float = 10.0
) -> Channel:
    """Open the fastest channel to a store: a raw socket if it offers one, else Flight."""
    flight = FlightChannel(address, credentials, connect_timeout_s)
    port = flight.offers.get("socket_port")
    # Never with TLS, whatever the peer offers: a raw socket is not encrypted.
    if credentials.identity is None and isinstance(port, int) and 0 < port < 1 << 16:
        with suppress(StoreError):
            at = address.model_copy(update={"port": port})
            bare = SocketChannel(at, credentials, connect_timeout_s)
            flight.close()
            return bare
    return flight
