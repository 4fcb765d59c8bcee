"""A store in a process of its own, asked over sockets: rightly, wrongly, and while it dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pytest.importorskip("cryptography")

from pyarrow import flight  # noqa: E402

from headrace.core.errors import SpecError  # noqa: E402
from headrace.graph.hops import HopRequest, LocalSource, Rule, StitchedSource  # noqa: E402
from headrace.graph.opening import PartitionedGraph, open_graph  # noqa: E402
from headrace.graph.service.client import StoreClient  # noqa: E402
from headrace.graph.service.errors import StoreError  # noqa: E402
from headrace.graph.service.messages import encode_request  # noqa: E402
from headrace.graph.service.security import Authority, Credentials, Secret  # noqa: E402
from headrace.graph.service.shard import open_shard  # noqa: E402
from tests.integration.hostile import NUMBER, hostile_requests  # noqa: E402
from tests.integration.store_process import (  # noqa: E402
    RawStream,
    StoreProcess,
    patient,
    running,
)
from tests.unit.graph import small_graphs  # noqa: E402

pytestmark = pytest.mark.integration

EDGES = small_graphs.NODE_TO_NODE
MEBIBYTE = 1 << 20
LIMITS = {
    "max_rows": 4000,
    "max_request_bytes": 8 * MEBIBYTE,
    "max_reply_bytes": 8 * MEBIBYTE,
    "max_streams": 40,
    "greeting_s": 2.0,
    "idle_s": 30.0,
    "stall_s": 2.0,
}
EMBEDDING = {"node_type": "node", "column": "emb", "dim": 6, "optimizer": "sgd", "lr": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "parts"
    small_graphs.write(small_graphs.homogeneous(2000, 20_000), path, num_parts=2)
    return path


@pytest.fixture(scope="module")
def graph(folder: Path) -> PartitionedGraph:
    return open_graph(folder)


@pytest.fixture(scope="module")
def stores(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[StoreProcess]]:
    """Two stores, one with TLS and one without."""
    base = tmp_path_factory.mktemp("stores")
    config: dict[str, Any] = {"limits": LIMITS, "embeddings": [EMBEDDING]}
    with (
        running(base / "a", folder, 0, **config) as first,
        running(base / "b", folder, 1, tls=False, **config) as second,
    ):
        yield [first, second]


@pytest.fixture(scope="module")
def clients(stores: list[StoreProcess]) -> Iterator[list[StoreClient]]:
    opened = [store.connect() for store in stores]
    yield opened
    for client in opened:
        client.close()


# --- what a store answers -------------------------------------------------------------------------


@pytest.mark.parametrize("fanout", [-1, 0, 1, 5])
@pytest.mark.parametrize("replace", [False, True])
def test_neighbours_are_those_of_the_parts(
    graph: PartitionedGraph, clients: list[StoreClient], fanout: int, replace: bool
) -> None:
    local = LocalSource({EDGES: [open_shard(graph, part).edges[EDGES] for part in (0, 1)]})
    asked = StitchedSource(clients, {"node": graph.offsets("node")})
    rng = np.random.default_rng(fanout + 1)
    for num_nodes in (0, 1, 500):
        nodes = rng.integers(0, 2000, num_nodes)
        request = HopRequest(EDGES, nodes, fanout, key=2**64 - 1, rule=Rule(replace=replace))
        want, got = local.hop(request), asked.hop(request)
        np.testing.assert_array_equal(got.counts, want.counts)
        np.testing.assert_array_equal(got.neighbours, want.neighbours)
        np.testing.assert_array_equal(got.edges, want.edges)


@pytest.mark.parametrize("part", [0, 1])
def test_rows_are_those_of_the_part(
    graph: PartitionedGraph, clients: list[StoreClient], part: int
) -> None:
    own, client = graph.part(part), clients[part]
    start, count = own.start("node"), own.num_nodes("node")
    local = np.random.default_rng(0).integers(0, count, 300)
    for column in ("x", "y"):
        got = client.gather("node", column, local + start)
        want = own.column("node", column)[local]
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)
        assert got.flags.writeable
    for dims in ([1, 2, 3], [4, 0], [2, 2], [], [0, 1, 2, 3, 4]):
        got = client.gather("node", "x", local + start, np.array(dims, np.int64))
        np.testing.assert_array_equal(got, own.column("node", "x")[local][:, dims])
    assert client.gather("node", "x", np.empty(0, np.int64)).shape == (0, 5)
    first = graph.manifest.edges[0].offsets[part]
    got = client.gather(EDGES, "edge_weight", np.array([first + 9, first]))
    np.testing.assert_array_equal(got, own.edge_column(EDGES, "edge_weight")[[9, 0]])


def test_gradients_are_applied_where_local_processes_see_them(
    graph: PartitionedGraph, stores: list[StoreProcess], clients: list[StoreClient]
) -> None:
    for part, (store, client) in enumerate(zip(stores, clients, strict=True)):
        ids = np.array([3, 5, 3]) + graph.part(part).start("node")
        before = client.gather("node", "emb", ids)
        gradients = np.arange(18, dtype=np.float32).reshape(3, 6)
        client.push("node", "emb", ids, gradients)
        after = client.gather("node", "emb", ids)
        summed = gradients[[0, 1, 0]] + gradients[[2, 2, 2]] * [[1], [0], [1]]
        np.testing.assert_allclose(after, before - 0.5 * summed, rtol=1e-5)
        file = store.folder / "embeddings" / f"part-{part}" / "node-0" / "emb.bin"
        np.testing.assert_array_equal(
            np.fromfile(file, np.float32).reshape(-1, 6)[[3, 5, 3]], after
        )


def test_a_store_says_how_it_is(graph: PartitionedGraph, clients: list[StoreClient]) -> None:
    for part, client in enumerate(clients):
        patient(lambda c=client: c.status().warmed_bytes == c.status().to_warm_bytes, 10)
        status = client.status()
        assert status.part == part
        assert status.num_edges == graph.part(part).num_edges(EDGES)
        assert status.feature_bytes == status.resident_bytes == status.warmed_bytes
        assert status.counts["status"] >= 1
        assert status.memory_bytes > 0


def test_many_requests_are_on_their_way(
    graph: PartitionedGraph, clients: list[StoreClient]
) -> None:
    own, client = graph.part(0), clients[0]
    rng = np.random.default_rng(1)
    asked = [rng.integers(0, own.num_nodes("node"), 50) for _ in range(200)]
    futures = [client.gather_soon("node", "x", ids + own.start("node")) for ids in asked]
    refused = client.gather_soon("node", "x", np.array([-1]))
    for ids, future in zip(asked, futures, strict=True):
        np.testing.assert_array_equal(future.result(20), own.column("node", "x")[ids])
    with pytest.raises(StoreError, match="store 0 on m7 refused to gather: ids -1"):
        refused.result(20)


def test_threads_share_a_client(graph: PartitionedGraph, clients: list[StoreClient]) -> None:
    own, client = graph.part(1), clients[1]
    wrong: list[int] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            ids = rng.integers(0, own.num_nodes("node"), 20)
            got = client.gather("node", "x", ids + own.start("node"))
            if not np.array_equal(got, own.column("node", "x")[ids]):
                wrong.append(seed)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- requests that nobody should send -------------------------------------------------------------

_NODES = np.array([1, 2, 3])
_SAMPLE = {
    "op": "sample", "edge_type": list(EDGES), "fanout": 3, "key": 5, "replace": False,
    "disjoint": False, "last": False, "edge_ids": True, "has_trees": False, "has_bounds": False,
}  # fmt: skip
_FLAGS = ("replace", "disjoint", "edge_ids")
REQUESTS: dict[str, tuple[dict[str, Any], list[np.ndarray], dict[str, set[str]]]] = {
    "sample": (
        _SAMPLE,
        [_NODES],
        {"fanout": {"a number"}, "key": {"a number"}, **{flag: {"true"} for flag in _FLAGS}},
    ),
    "gather": (
        {"op": "gather", "of": "node", "column": "x", "has_dims": True},
        [_NODES, np.array([0, 1])],
        {"column": {"a text"}, "has_dims": {"true"}},
    ),
    "push": (
        {"op": "push", "of": "node", "column": "emb"},
        [_NODES, np.ones((3, 6), np.float32)],
        {},
    ),
    "status": ({"op": "status"}, [], {}),
    "ping": ({"op": "ping"}, [], {}),
}
HOSTILE = [
    pytest.param(data, id=f"{operation}: {what}")
    for operation, (fields, arrays, valid) in REQUESTS.items()
    for what, data in hostile_requests(fields, arrays, valid)
]


def test_the_table_is_long_enough() -> None:
    for fields, arrays, valid in REQUESTS.values():
        assert len(list(hostile_requests(fields, arrays, valid))) >= 50


@pytest.fixture(scope="module")
def rude(stores: list[StoreProcess]) -> Iterator[RawStream]:
    stream = RawStream(stores[0])
    yield stream
    stream.close()


@pytest.mark.parametrize("data", HOSTILE)
def test_a_wrong_request_is_refused_and_the_stream_lives(rude: RawStream, data: bytes) -> None:
    rude.send(data)
    reply = rude.receive()
    assert reply.number in (0, NUMBER)
    assert reply.fields["problem"]
    assert reply.fields["problem"] != "the store failed to answer"
    assert not reply.arrays


def test_values_that_would_spoil_an_embedding_are_refused(
    graph: PartitionedGraph, clients: list[StoreClient]
) -> None:
    ids = np.arange(3) + graph.part(0).start("node")
    before = clients[0].gather("node", "emb", ids)
    for wrong in (np.nan, np.inf, -np.inf):
        gradients = np.zeros((3, 6), np.float32)
        gradients[2, 5] = wrong
        with pytest.raises(StoreError, match="not finite"):
            clients[0].push("node", "emb", ids, gradients)
    np.testing.assert_array_equal(clients[0].gather("node", "emb", ids), before)


def test_a_reply_that_would_be_too_large_is_not_begun(
    graph: PartitionedGraph, clients: list[StoreClient]
) -> None:
    nodes = np.full(4000, graph.part(0).start("node"))
    request = HopRequest(EDGES, nodes, 2**20, key=0, rule=Rule(replace=True))
    with pytest.raises(StoreError, match="a reply has at most"):
        clients[0].sample(request)


# --- streams and connections that nobody should open ----------------------------------------------


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


def _send_batch(store: StoreProcess) -> RawStream:
    stream = RawStream(store, schema=None)
    stream.begin(_batch(1).schema)
    stream.send_batch(_batch(1000))
    return stream


def _send_bomb(store: StoreProcess) -> RawStream:
    stream = RawStream(store, schema=None)
    bomb = _batch(512 * MEBIBYTE)
    stream.begin(bomb.schema, pa.ipc.IpcWriteOptions(compression="zstd"))
    stream.send_batch(bomb)
    return stream


def _send_wide_schema(store: StoreProcess) -> RawStream:
    return RawStream(store, schema=pa.schema([(f"c{i}", pa.int8()) for i in range(2000)]))


def _send_no_schema(store: StoreProcess) -> RawStream:
    stream = RawStream(store, schema=None)
    stream.send(b"x")
    return stream


def _send_empty(store: StoreProcess) -> RawStream:
    stream = RawStream(store)
    stream.send(b"")
    return stream


def _send_nothing(store: StoreProcess) -> RawStream:
    return RawStream(store, schema=None)


def _send_giant(store: StoreProcess) -> RawStream:
    stream = RawStream(store)
    stream.send(bytes(200 * MEBIBYTE))
    return stream


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
@pytest.mark.parametrize(
    "begin",
    [
        _send_batch,
        _send_bomb,
        _send_wide_schema,
        _send_no_schema,
        _send_empty,
        _send_nothing,
        _send_giant,
    ],
)
def test_a_wrong_stream_ends_and_costs_little(
    stores: list[StoreProcess],
    clients: list[StoreClient],
    which: int,
    begin: Callable[[StoreProcess], RawStream],
) -> None:
    store = stores[which]
    before = store.memory_bytes
    peak = _Peak(store)
    with peak:
        assert _ends(begin(store))
    clients[which].status()
    assert peak.bytes - before < 300 * MEBIBYTE
    # The allocator keeps some, once.
    assert patient(lambda: store.memory_bytes - before < 128 * MEBIBYTE, 10)


class _Peak:
    """The most memory a store had during a block."""

    def __init__(self, store: StoreProcess) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = 0

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.bytes = max(self.bytes, self._store.memory_bytes)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
def test_slow_readers_are_cut_and_cost_little(
    graph: PartitionedGraph, stores: list[StoreProcess], clients: list[StoreClient], which: int
) -> None:
    store, client = stores[which], clients[which]
    start = graph.part(which).start("node")
    fields = {"op": "gather", "of": "node", "column": "x", "has_dims": False}
    ids = np.full(4000, start)
    before = store.memory_bytes
    slow = [RawStream(store) for _ in range(5)]

    def ask(stream: RawStream) -> None:
        while stream.send(encode_request(1, fields, [ids])):
            pass

    threads = [threading.Thread(target=ask, args=(stream,)) for stream in slow]
    for thread in threads:
        thread.start()
    # Nobody reads; the store cuts them after two seconds, which ends the threads.
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
        client.gather("node", "x", ids[:10])
    assert store.memory_bytes - before < 64 * MEBIBYTE
    for stream in slow:
        assert _ends(stream)


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
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
def test_half_open_connections_are_cut(
    stores: list[StoreProcess], clients: list[StoreClient], which: int, greeting: bytes
) -> None:
    sockets = [socket.create_connection(("127.0.0.1", stores[which].port)) for _ in range(20)]
    for sock in sockets:
        sock.sendall(greeting)
    clients[which].status()
    for sock in sockets:
        sock.settimeout(20)
        assert _is_ended(sock)
        sock.close()


def test_a_flood_of_bytes_is_cut(stores: list[StoreProcess], clients: list[StoreClient]) -> None:
    before = stores[1].memory_bytes
    with socket.create_connection(("127.0.0.1", stores[1].port), timeout=20) as sock:
        with suppress(ConnectionError):
            for _ in range(2000):
                sock.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(MEBIBYTE))
        assert _is_ended(sock)
    clients[1].status()
    assert stores[1].memory_bytes - before < 64 * MEBIBYTE


def _is_ended(sock: socket.socket) -> bool:
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def test_there_is_room_for_so_many_clients(stores: list[StoreProcess]) -> None:
    crowd = [RawStream(stores[1]) for _ in range(60)]
    for stream in crowd:
        stream.send(encode_request(1, {"op": "ping"}, []))
    answers = [_first_word(stream) for stream in crowd]
    assert 30 <= sum(answer == "1" for answer in answers) < 60
    assert all(answer == "1" or "clients already" in answer for answer in answers)
    assert patient(lambda: _lets_in(stores[1]), 10)


def _first_word(stream: RawStream) -> str:
    try:
        return str(stream.receive().number)
    except flight.FlightServerError as error:
        return str(error)
    finally:
        stream.close()


def _lets_in(store: StoreProcess) -> bool:
    try:
        store.connect().close()
    except StoreError:
        return False
    return True


# --- nobody gets in -------------------------------------------------------------------------------

DESCRIPTOR = flight.FlightDescriptor.for_path("x")


def _do_put(client: Any, options: Any) -> None:
    writer, _ = client.do_put(DESCRIPTOR, pa.schema([("a", pa.int8())]), options)
    writer.write_batch(pa.record_batch({"a": pa.array([1], pa.int8())}))
    writer.close()


def _do_exchange(client: Any, options: Any) -> None:
    writer, reader = client.do_exchange(DESCRIPTOR, options)
    writer.begin(pa.schema([]))
    writer.write_metadata(encode_request(1, {"op": "ping"}, []))
    reader.read_chunk()


class _Handshake(flight.ClientAuthHandler):  # type: ignore[misc]
    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        outgoing.write(b"let me in")
        incoming.read()

    def get_token(self) -> bytes:
        return b""


ENDPOINTS: dict[str, Callable[[Any, Any], object]] = {
    "Handshake": lambda client, options: client.authenticate(_Handshake(), options),
    "ListFlights": lambda client, options: list(client.list_flights(b"", options)),
    "GetFlightInfo": lambda client, options: client.get_flight_info(DESCRIPTOR, options),
    "GetSchema": lambda client, options: client.get_schema(DESCRIPTOR, options),
    "DoGet": lambda client, options: client.do_get(flight.Ticket(b"x"), options).read_all(),
    "DoPut": _do_put,
    "DoAction": lambda client, options: list(client.do_action(("x", b""), options)),
    "ListActions": lambda client, options: client.list_actions(options),
    "DoExchange": _do_exchange,
}
REFUSALS = (flight.FlightError, pa.ArrowException, OSError, NotImplementedError)


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("tokens", ["none", "wrong", "short", "empty", "two"])
def test_without_the_token_every_endpoint_refuses(
    stores: list[StoreProcess], which: int, endpoint: str, tokens: str
) -> None:
    store = stores[which]
    right = store.token.reveal()
    given = {
        "none": (),
        "wrong": (Secret.random().reveal(),),
        "short": (right[:-1],),
        "empty": (b"",),
        "two": (right, Secret.random().reveal()),
    }[tokens]
    client = store.flight_client()
    with pytest.raises(REFUSALS, match="needs the token") as caught:
        ENDPOINTS[endpoint](client, store.call_options(*given))
    assert right.decode() not in str(caught.value)
    client.close()


@pytest.mark.parametrize("endpoint", ENDPOINTS)
@pytest.mark.parametrize("how", ["plain text", "no certificate", "stranger's certificate"])
def test_without_tls_every_endpoint_refuses(
    stores: list[StoreProcess], endpoint: str, how: str
) -> None:
    store = stores[0]
    if how == "plain text":
        client = store.flight_client(None, "grpc+tcp")
    elif how == "no certificate":
        client = store.flight_client(None)
    else:
        client = store.flight_client(_stranger().issue("sampler 0"))
    with pytest.raises(REFUSALS, match="failed to connect"):
        ENDPOINTS[endpoint](client, store.call_options(store.token.reveal()))
    client.close()


def _stranger() -> Authority:
    from datetime import UTC, datetime, timedelta

    return Authority(datetime.now(UTC), timedelta(hours=1))


@pytest.mark.parametrize("which", [0, 1], ids=["tls", "plain"])
@pytest.mark.parametrize("endpoint", sorted(ENDPOINTS.keys() - {"DoExchange"}))
def test_with_the_token_other_endpoints_refuse_too(
    stores: list[StoreProcess], clients: list[StoreClient], which: int, endpoint: str
) -> None:
    client = stores[which].flight_client()
    for _ in range(50):
        with pytest.raises(REFUSALS):
            ENDPOINTS[endpoint](client, stores[which].call_options(stores[which].token.reveal()))
    clients[which].status()
    client.close()


def test_a_large_message_of_a_stranger_is_not_kept(stores: list[StoreProcess]) -> None:
    store = stores[1]
    client = store.flight_client()
    before, peak = store.memory_bytes, _Peak(store)
    with peak, pytest.raises(REFUSALS):
        list(client.do_action(("x", bytes(200 * MEBIBYTE)), store.call_options()))
    assert peak.bytes - before < 300 * MEBIBYTE
    client.close()


def test_clients_learn_why_they_are_refused(stores: list[StoreProcess]) -> None:
    store = stores[0]
    own = store.client_credentials
    with pytest.raises(StoreError, match="store 0 on m7 refuses us: it needs the token"):
        StoreClient.connect(store.address, Credentials(Secret.random(), own.identity))
    for credentials in (Credentials(own.token), Credentials(own.token, _stranger().issue("x"))):
        with pytest.raises(StoreError, match="store 0 on m7 is gone") as caught:
            StoreClient.connect(store.address, credentials)
        assert own.token.reveal().decode() not in str(caught.value)


def test_nobody_can_pretend_to_be_a_store(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "other", folder) as impostor:
        stranger = Credentials(Secret.random(), _stranger().issue("sampler 0"))
        with pytest.raises(StoreError, match="is gone"):
            StoreClient.connect(impostor.address, stranger)


def test_the_token_is_nowhere_to_be_read(
    stores: list[StoreProcess], clients: list[StoreClient]
) -> None:
    for store, client in zip(stores, clients, strict=True):
        client.status()
        token = store.token.reveal()
        process = Path(f"/proc/{store.process.pid}")
        for name in ("cmdline", "environ"):
            assert token not in (process / name).read_bytes()
        assert token.decode() not in store.log
        assert token.decode() not in f"{client!r}{vars(client)}{vars(client._channel)}"


def test_a_store_without_a_certificate_does_not_start(folder: Path, tmp_path: Path) -> None:
    Credentials(Secret.random()).save(tmp_path / "keys")
    config = {
        "graph": str(folder),
        "part": 0,
        "credentials": str(tmp_path / "keys"),
        "ready": str(tmp_path / "ready"),
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run(
        [sys.executable, "-m", "headrace.graph.service", "--config", tmp_path / "config.json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == SpecError.exit_code
    assert "TLS is on" in done.stderr
    assert "Traceback" not in done.stderr


# --- stores that die ------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_a_killed_store_is_named_in_time(folder: Path, tmp_path: Path, tls: bool) -> None:
    with running(tmp_path / "s", folder, 1, tls=tls) as store, store.connect() as client:
        start = open_graph(folder).part(1).start("node")
        ids = np.full(100_000, start)
        futures = [client.gather_soon("node", "x", ids) for _ in range(20)]
        futures[0].result(20)
        store.process.kill()
        begun = time.monotonic()
        with pytest.raises(StoreError, match="store 1 on m7 is gone"):
            _ask_for_ever(client, futures, ids)
        assert time.monotonic() - begun < 15
        with pytest.raises(StoreError, match="store 1 on m7"):
            client.status()


def _ask_for_ever(client: StoreClient, futures: list[Any], ids: np.ndarray) -> None:
    for future in futures:
        future.result(15)
    while True:
        client.gather("node", "x", ids)


def test_a_stuck_store_is_named_in_time(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "s", folder) as store, store.connect(timeout_s=1.0) as client:
        store.process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(StoreError, match="store 0 on m7 did not answer status in 1 s"):
            client.status()
        # Also one that cannot be written to, and one that is not there yet.
        with pytest.raises(StoreError, match="store 0 on m7"):
            client.push("node", "x", np.zeros(10**7, np.int64), np.zeros((10**7, 2)))
        with pytest.raises(StoreError, match="store 0 on m7 did not let us in within 1 s"):
            store.connect(timeout_s=1.0)
        assert time.monotonic() - begun < 15


def test_a_large_request_to_a_stuck_store_does_not_hang(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "s", folder) as store, store.connect(timeout_s=1.0) as client:
        store.process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(StoreError, match="did not answer push in 1 s"):
            client.push("node", "x", np.zeros(10**6, np.int64), np.zeros((10**6, 6)))
        assert time.monotonic() - begun < 10


def test_a_store_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "s", folder) as store:
        pass
    begun = time.monotonic()
    with pytest.raises(StoreError, match="store 0 on m7 is gone"):
        store.connect()
    assert time.monotonic() - begun < 15


def test_a_store_ends_with_its_input_and_with_sigterm(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "a", folder) as store, store.connect() as client:
        assert store.process.stdin is not None
        store.process.stdin.close()
        assert store.process.wait(20) == 0
        with pytest.raises(StoreError, match="store 0 on m7"):
            client.status()
    with running(tmp_path / "b", folder) as store, store.connect():
        store.process.terminate()
        assert store.process.wait(20) == 0


def test_a_store_ends_when_its_parent_is_killed(folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from tests.integration.store_process import StoreProcess\n"
        f"store = StoreProcess(Path({str(tmp_path / 's')!r}), Path({str(folder)!r}))\n"
        "print(store.process.pid, flush=True); time.sleep(600)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
    assert patient(lambda: not _is_alive(pid), 15)


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
