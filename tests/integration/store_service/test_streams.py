"""Streams and connections that nobody should open."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.store.client import StoreClient
from headrace.rpc.connection import ACCEPTED, LENGTH, TOO_MANY
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
    is_cut,
)
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


GIANT_BYTES = 200 * MEBIBYTE
PING = encode_request(1, {"op": "ping"}, [])


@every_endpoint
def test_a_giant_length_ends_the_stream_before_memory_is_taken(serving: ServingProcess) -> None:
    before, peak = serving.memory_bytes, Peak(serving)
    with peak:
        for length in (GIANT_BYTES, 2**32 - 1):
            stream = RawStream(serving)
            stream.send_bytes(LENGTH.pack(length))
            while stream.send_bytes(bytes(MEBIBYTE)):
                pass
            assert stream.is_cut()
            stream.close()
    assert peak.bytes - before < 32 * MEBIBYTE
    serving.ping()


@every_endpoint
def test_the_largest_request_is_read_and_given_back(serving: ServingProcess) -> None:
    before = serving.memory_bytes
    largest = 1 << 16 if isinstance(serving, SamplerProcess) else 8 * MEBIBYTE
    for _ in range(3):
        stream = RawStream(serving)
        stream.send(bytes(largest))
        assert "problem" in stream.receive().fields
        stream.close()
    assert eventually(lambda: serving.memory_bytes - before < 32 * MEBIBYTE)


@every_endpoint
@pytest.mark.parametrize("request_", [b"", b"x", bytes(15), PING[:-1], PING + b"x"])
def test_a_malformed_request_is_refused_and_the_stream_lives(
    serving: ServingProcess, request_: bytes
) -> None:
    stream = RawStream(serving)
    stream.send(request_)
    assert "malformed" in stream.receive().fields["problem"]
    stream.send(PING)
    assert stream.receive().number == 1
    stream.close()


@every_endpoint
def test_half_a_request_does_not_disturb_others(serving: ServingProcess) -> None:
    stream = RawStream(serving)
    stream.send_bytes(LENGTH.pack(len(PING)) + PING[:-1])
    serving.ping()
    stream.send_bytes(PING[-1:])
    assert stream.receive().number == 1
    stream.close()


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
        assert stream.is_cut()
        stream.close()


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
        assert is_cut(sock)
        sock.close()


@pytest.mark.parametrize("serving", [("store", "plain"), ("sampler", "plain")], indirect=True)
def test_a_flood_of_bytes_is_cut(serving: ServingProcess) -> None:
    before = serving.memory_bytes
    with socket.create_connection(("127.0.0.1", serving.port), timeout=60) as sock:
        with suppress(ConnectionError):
            for _ in range(2000):
                sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(MEBIBYTE))
        assert is_cut(sock)
    serving.ping()
    assert eventually(lambda: serving.memory_bytes - before < 32 * MEBIBYTE)


@pytest.mark.parametrize("serving", [("store", "plain"), ("sampler", "plain")], indirect=True)
def test_there_is_room_for_so_many_clients(serving: ServingProcess) -> None:
    crowd = [RawStream(serving) for _ in range(60)]
    verdicts = Counter(stream.verdict for stream in crowd)
    assert set(verdicts) == {ACCEPTED, TOO_MANY}
    assert verdicts[ACCEPTED] >= 30
    with pytest.raises(StoreError, match="has too many clients already"):
        serving.ping()
    # Only now: whoever leaves makes room for the next.
    for stream in crowd:
        stream.close()
    assert eventually(lambda: _lets_in(serving))


def _lets_in(store: ServingProcess) -> bool:
    try:
        store.ping()
    except StoreError:
        return False
    return True
