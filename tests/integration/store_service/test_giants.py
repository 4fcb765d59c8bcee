"""Messages far larger than a request may be. gRPC takes a whole message before anyone sees it."""

from __future__ import annotations

import copy
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pyarrow as pa
import pytest
from pyarrow import flight

from tests.integration.store_service.store_process import (
    GIANT_BYTES,
    MEBIBYTE,
    MOST_GIANT_BYTES,
    Peak,
    RawStream,
    ServingProcess,
    every_endpoint,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration

BYTES_PER_S = 50 * MEBIBYTE
ENDS = (flight.FlightError, pa.ArrowException, StopIteration)


def send_giant(serving: ServingProcess) -> None:
    """Send it; the stream ends."""
    stream = RawStream(serving)
    stream.send(bytes(GIANT_BYTES))
    with pytest.raises(ENDS):
        stream.receive()
    stream.close()


@every_endpoint
def test_a_giant_is_given_back_each_time(serving: ServingProcess) -> None:
    before = serving.memory_bytes
    for _ in range(3):
        peak = Peak(serving)
        with peak:
            send_giant(serving)
        # It may be here as a whole before the guard looks: once as it came, once in one piece.
        assert peak.bytes - before < MOST_GIANT_BYTES
        serving.ping()
        assert eventually(lambda: serving.memory_bytes - before < 32 * MEBIBYTE)


@every_endpoint
def test_a_giant_that_takes_its_time_is_cut(serving: ServingProcess) -> None:
    before = serving.memory_bytes
    peak = Peak(serving)
    # More than twice the largest request, much less than the giant.
    with peak, narrow_way(serving, 64 * MEBIBYTE) as there:
        send_giant(there)
    assert peak.bytes - before < 128 * MEBIBYTE
    serving.ping()


@contextmanager
def narrow_way(serving: ServingProcess, most_bytes: int) -> Iterator[ServingProcess]:
    """The same process, behind a slow connection that waits after so many bytes."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = copy.copy(serving)
        near.port = listener.getsockname()[1]
        thread = threading.Thread(target=_pass_on, args=(listener, serving.port, most_bytes))
        thread.start()
        yield near
        thread.join(60)
        assert not thread.is_alive()


def _pass_on(listener: socket.socket, port: int, most_bytes: int) -> None:
    with listener.accept()[0] as ours, socket.create_connection(("127.0.0.1", port)) as theirs:
        back = threading.Thread(target=_copy, args=(theirs, ours, None))
        back.start()
        _copy(ours, theirs, most_bytes)
        # Until the process has cut the connection.
        back.join()
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket, most_bytes: int | None) -> None:
    passed = 0
    with suppress(OSError):
        while most_bytes is None or passed < most_bytes:
            piece = source.recv(1 << 16)
            if not piece:
                return
            target.sendall(piece)
            passed += len(piece)
            if most_bytes is not None:
                time.sleep(len(piece) / BYTES_PER_S)
