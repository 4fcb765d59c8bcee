"""The bare socket beside Flight: as fast as it can be, and as careful."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampling.hop import HopRequest
from headrace.graph.store.client import StoreClient
from headrace.graph.store.embedding_service import GradientPush
from headrace.rpc.channel import FlightChannel
from headrace.rpc.credentials import Credentials, Secret
from headrace.rpc.errors import StoreError
from headrace.rpc.framing import Message, encode_request, receive_reply
from headrace.rpc.socket_channel import SocketChannel, open_channel
from headrace.rpc.socket_server import ACCEPTED, fill, read, read_length
from tests.integration.store_service.conftest import EMBEDDING, LIMITS
from tests.integration.store_service.store_process import (
    MEBIBYTE,
    Peak,
    StoreProcess,
    running,
)
from tests.support.waiting import eventually
from tests.support.wrong_requests import (
    NUMBER,
    STORE_REQUESTS,
    all_wrong,
    problem_of,
    sampled,
)
from tests.unit.graph import small_graphs

pytestmark = pytest.mark.integration

LENGTH = struct.Struct("<I")
PING = encode_request(NUMBER, {"op": "ping"}, [])


@pytest.fixture(scope="module")
def store(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreProcess]:
    base = tmp_path_factory.mktemp("sockets")
    config: dict[str, Any] = {"limits": LIMITS, "sockets": True}
    with running(base / "a", folder, 0, tls=False, **config) as found:
        yield found


@pytest.fixture(scope="module")
def port(store: StoreProcess) -> int:
    channel = FlightChannel(store.address, store.client_credentials)
    channel.close()
    found = channel.offers["socket_port"]
    assert isinstance(found, int)
    assert found != store.port
    return found


class Rude:
    """Somebody who has the token and bad manners."""

    def __init__(self, port: int, token: bytes | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 30)
        if token is not None:
            self.send(token)

    def send(self, data: bytes) -> None:
        self.socket.sendall(LENGTH.pack(len(data)) + data)

    def send_for_ever(self, data: bytes) -> None:
        while True:
            self.send(data)

    def receive(self) -> Message:
        frame = read(self.socket, read_length(self.socket))
        return receive_reply(frame, lambda memory: fill(self.socket, memory))

    def is_cut(self) -> bool:
        """Wait until the other side ends."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass
        return True


@pytest.fixture
def rude(store: StoreProcess, port: int) -> Iterator[Rude]:
    made = Rude(port, store.token.reveal())
    assert read(made.socket, len(ACCEPTED)) == ACCEPTED
    with made.socket:
        yield made


def _serves(store: StoreProcess) -> None:
    with store.connect() as client:
        assert client.status().part == 0


def test_answers_are_those_of_flight(store: StoreProcess, graph: PartitionedGraph) -> None:
    nodes = np.arange(100) + graph.part(0).start("node")
    request = HopRequest(small_graphs.NODE_TO_NODE, nodes, 3, key=7)
    bare = open_channel(store.address, store.client_credentials)
    assert isinstance(bare, SocketChannel)
    flight = FlightChannel(store.address, store.client_credentials)
    with StoreClient(bare) as ours, StoreClient(flight) as theirs:
        ours.embed("node", "emb", EMBEDDING).result()
        for column in ("x", "emb"):
            np.testing.assert_array_equal(
                ours.gather("node", column, nodes), theirs.gather("node", column, nodes)
            )
        empty = ours.gather("node", "x", nodes[:0])
        assert empty.shape == theirs.gather("node", "x", nodes[:0]).shape
        mine, yours = ours.sample(request), theirs.sample(request)
        for name in ("counts", "neighbours", "edges"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(yours, name))
        gradient_push = GradientPush(0, 1, 0, 1, True, 0.5, nodes[:2], np.ones((2, 6), np.float32))
        assert ours.push("node", "emb", gradient_push).result() == (True, 1)
        np.testing.assert_array_equal(
            ours.gather("node", "emb", nodes), theirs.gather("node", "emb", nodes)
        )
        with pytest.raises(StoreError, match="store 0 on m7 refused to gather"):
            ours.gather("node", "nothing", nodes)


def test_several_threads_ask_at_once(store: StoreProcess, graph: PartitionedGraph) -> None:
    first = graph.part(0).start("node")
    rows = np.array(graph.part(0).column("node", "x"))
    wrong: list[int] = []
    with store.connect() as client:

        def ask(seed: int) -> None:
            rng = np.random.default_rng(seed)
            for _ in range(20):
                ids = rng.integers(0, len(rows), 200)
                futures = [client.gather_soon("node", "x", ids + first) for _ in range(4)]
                if not all(np.array_equal(f.result(), rows[ids]) for f in futures):
                    wrong.append(seed)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_wrong_requests_are_refused_and_the_socket_lives(rude: Rude) -> None:
    for what, data in sampled(all_wrong(STORE_REQUESTS)):
        rude.send(data)
        reply = rude.receive()
        assert problem_of(reply.number, reply.fields, len(reply.arrays)) is None, what


@pytest.mark.parametrize(
    "greeting",
    [
        b"",
        LENGTH.pack(0),
        LENGTH.pack(2**32 - 1) + bytes(1000),
        LENGTH.pack(257) + bytes(257),
        LENGTH.pack(43) + bytes(42),
        LENGTH.pack(43) + b"A" * 43,
        b"GET / HTTP/1.1\r\nHost: store\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(64),
        LENGTH.pack(len(PING)) + PING,
    ],
)
def test_without_the_token_nobody_gets_in(store: StoreProcess, port: int, greeting: bytes) -> None:
    stranger = Rude(port)
    with stranger.socket:
        stranger.socket.sendall(greeting)
        said = b""
        try:
            while more := stranger.socket.recv(1 << 16):
                said += more
        except ConnectionError:
            pass
        assert said == b""
    _serves(store)


@pytest.mark.parametrize("how", ["short", "long", "wrong"])
def test_a_token_must_be_the_whole_token(store: StoreProcess, port: int, how: str) -> None:
    right = store.token.reveal()
    token = {"short": right[:-1], "long": right + b"A", "wrong": Secret.random().reveal()}[how]
    stranger = Rude(port, token)
    with stranger.socket:
        assert stranger.is_cut()
    assert right.decode() not in store.log


def test_clients_learn_that_they_are_refused(store: StoreProcess, port: int) -> None:
    at = store.address.model_copy(update={"port": port})
    with pytest.raises(StoreError, match="rejected this client: the token"):
        SocketChannel(at, Credentials(Secret.random()))


def test_many_strangers_do_not_keep_others_out(store: StoreProcess, port: int) -> None:
    strangers = [Rude(port) for _ in range(100)]
    _serves(store)
    for stranger in strangers:
        assert stranger.is_cut()
        stranger.socket.close()

    def gets_in() -> bool:
        channel = open_channel(store.address, store.client_credentials)
        channel.close()
        return isinstance(channel, SocketChannel)

    assert eventually(gets_in)


def test_a_request_that_is_too_large_ends_the_stream(store: StoreProcess, rude: Rude) -> None:
    before, peak = store.memory_bytes, Peak(store)
    with peak:
        rude.socket.sendall(LENGTH.pack(2**32 - 1) + bytes(1000))
        assert rude.is_cut()
    assert peak.bytes - before < 64 * MEBIBYTE
    _serves(store)


def test_a_client_that_reads_nothing_is_cut(
    store: StoreProcess, rude: Rude, graph: PartitionedGraph
) -> None:
    ids = np.full(4000, graph.part(0).start("node"))
    fields = {"op": "gather", "of": "node", "column": "x", "has_dims": False}
    request = encode_request(NUMBER, fields, [ids])
    before, peak = store.memory_bytes, Peak(store)
    rude.socket.settimeout(60)
    with peak, pytest.raises(ConnectionError):
        rude.send_for_ever(request)
    assert peak.bytes - before < 64 * MEBIBYTE
    _serves(store)


def test_half_a_request_does_not_disturb_others(store: StoreProcess, rude: Rude) -> None:
    rude.socket.sendall(LENGTH.pack(len(PING)) + PING[:-1])
    _serves(store)
    rude.socket.sendall(PING[-1:])
    assert rude.receive().number == NUMBER


def test_a_store_that_encrypts_offers_no_socket(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "tls", folder, sockets=True) as store:
        channel = open_channel(store.address, store.client_credentials)
        assert isinstance(channel, FlightChannel)
        assert "socket_port" not in channel.offers
        channel.close()


def test_a_store_that_is_stuck_or_killed_is_noticed(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "dying", folder, tls=False, sockets=True) as store:
        client = StoreClient(open_channel(store.address, store.client_credentials), 2.0)
        store.freeze()
        with pytest.raises(StoreError, match="store 0 on m7 did not answer status in 2 s"):
            client.status()
        client.close()
    with running(tmp_path / "killed", folder, tls=False, sockets=True) as store:
        client = store.connect()
        store.process.kill()
        store.process.wait()
        with pytest.raises(StoreError, match="store 0 on m7"):
            client.status()
        client.close()
