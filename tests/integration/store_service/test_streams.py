"""Streams and connections that nobody should open."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import flight

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.store.client import StoreClient
from headrace.rpc.errors import StoreError
from headrace.rpc.framing import encode_request
from tests.integration.store_service.store_process import (
    MEBIBYTE,
    Peak,
    RawStream,
    SamplerProcess,
    ServingProcess,
    StoreProcess,
    every_endpoint,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


def _ends(stream: RawStream) -> bool:
    """Whether a stream ends with an error instead of an answer."""
    try:
        while True:
            stream.receive()
    except (flight.FlightError, pa.ArrowException, StopIteration):
        return True
    finally:
        stream.close()


def _batch(num_bytes: int) -> Any:
    return pa.record_batch({"a": pa.array([bytes(num_bytes)])})


def _send_batch(store: ServingProcess) -> RawStream:
    stream = RawStream(store, schema=None)
    stream.begin(_batch(1).schema)
    stream.send_batch(_batch(1000))
    return stream


def _send_bomb(store: ServingProcess) -> RawStream:
    stream = RawStream(store, schema=None)
    bomb = _batch(512 * MEBIBYTE)
    stream.begin(bomb.schema, pa.ipc.IpcWriteOptions(compression="zstd"))
    stream.send_batch(bomb)
    return stream


def _send_wide_schema(store: ServingProcess) -> RawStream:
    return RawStream(store, schema=pa.schema([(f"c{i}", pa.int8()) for i in range(2000)]))


def _send_no_schema(store: ServingProcess) -> RawStream:
    stream = RawStream(store, schema=None)
    stream.send(b"x")
    return stream


def _send_empty(store: ServingProcess) -> RawStream:
    stream = RawStream(store)
    stream.send(b"")
    return stream


def _send_nothing(store: ServingProcess) -> RawStream:
    return RawStream(store, schema=None)


@every_endpoint
@pytest.mark.parametrize(
    "begin",
    [
        _send_batch,
        _send_bomb,
        _send_wide_schema,
        _send_no_schema,
        _send_empty,
        _send_nothing,
    ],
)
def test_a_wrong_stream_ends_and_costs_little(
    serving: ServingProcess, begin: Callable[[ServingProcess], RawStream]
) -> None:
    before = serving.memory_bytes
    peak = Peak(serving)
    with peak:
        assert _ends(begin(serving))
    serving.ping()
    assert peak.bytes - before < 128 * MEBIBYTE
    assert eventually(lambda: serving.memory_bytes - before < 32 * MEBIBYTE)


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
def test_slow_readers_are_cut_and_cost_little(
    graph: PartitionedGraph, stores: list[StoreProcess], clients: list[StoreClient], which: int
) -> None:
    ids = np.full(4000, graph.part(which).start("node"))
    fields = {"op": "gather", "of": "node", "column": "x", "has_dims": False}
    _ask_and_never_read(stores[which], encode_request(1, fields, [ids]))
    clients[which].gather("node", "x", ids[:10])


@pytest.mark.parametrize(
    "which",
    [pytest.param(0, marks=pytest.mark.campaign, id="tls"), pytest.param(1, id="plain")],
)
def test_samplers_cut_slow_readers_too(samplers: list[SamplerProcess], which: int) -> None:
    # A refusal repeats some of what it refuses, and so is the longest of answers.
    wrong = {f"{i}{'x' * 40}": 1 for i in range(5)}
    _ask_and_never_read(samplers[which], encode_request(1, {"op": "ping", **wrong}, []))


def _ask_and_never_read(serving: ServingProcess, request: bytes) -> None:
    before = serving.memory_bytes
    slow = [RawStream(serving) for _ in range(5)]

    def ask(stream: RawStream) -> None:
        while stream.send(request):
            pass

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in slow]
    for thread in threads:
        thread.start()
    # Nobody reads; they are cut after two seconds, which ends the threads.
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
        serving.ping()
    assert eventually(lambda: serving.memory_bytes - before < 32 * MEBIBYTE)
    for stream in slow:
        assert _ends(stream)


@every_endpoint
@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01",
        b"\0" * 99,
    ],
    ids=["silence", "http/1", "http/2", "tls", "zeros"],
)
def test_half_open_connections_are_cut(serving: ServingProcess, greeting: bytes) -> None:
    sockets = [socket.create_connection(("127.0.0.1", serving.port)) for _ in range(20)]
    for sock in sockets:
        sock.sendall(greeting)
    serving.ping()
    for sock in sockets:
        sock.settimeout(60)
        assert _is_ended(sock)
        sock.close()


@pytest.mark.parametrize("serving", [("store", "plain"), ("sampler", "plain")], indirect=True)
def test_a_flood_of_bytes_is_cut(serving: ServingProcess) -> None:
    before = serving.memory_bytes
    with socket.create_connection(("127.0.0.1", serving.port), timeout=60) as sock:
        with suppress(ConnectionError):
            for _ in range(2000):
                sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(MEBIBYTE))
        assert _is_ended(sock)
    serving.ping()
    assert eventually(lambda: serving.memory_bytes - before < 32 * MEBIBYTE)


def _is_ended(sock: socket.socket) -> bool:
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("serving", [("store", "plain"), ("sampler", "plain")], indirect=True)
def test_there_is_room_for_so_many_clients(serving: ServingProcess) -> None:
    crowd = [RawStream(serving) for _ in range(60)]
    for stream in crowd:
        stream.send(encode_request(1, {"op": "ping"}, []))
    answers = [_first_word(stream) for stream in crowd]
    # Only now: whoever leaves makes room for the next.
    for stream in crowd:
        stream.close()
    assert 30 <= sum(answer == "1" for answer in answers) < 60
    assert all(answer == "1" or "clients already" in answer for answer in answers)
    assert eventually(lambda: _lets_in(serving))


def _first_word(stream: RawStream) -> str:
    try:
        return str(stream.receive().number)
    except flight.FlightServerError as error:
        return str(error)


def _lets_in(store: ServingProcess) -> bool:
    try:
        store.ping()
    except StoreError:
        return False
    return True
