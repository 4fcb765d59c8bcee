"""Limits of a server, in seconds of a clock that the tests set."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Any, cast

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.rpc.admission import Admission
from headrace.rpc.client import RpcChannel
from headrace.rpc.config import RpcLimits, TaskAddress
from headrace.rpc.connection import ACCEPTED, LENGTH
from headrace.rpc.credentials import Credentials, Secret
from headrace.rpc.errors import DiskFullError, StoreError, StoreLostError
from headrace.rpc.event_loop import EventLoop, Watched
from headrace.rpc.framing import Message, encode_request
from headrace.rpc.server import RpcServer, _Listener
from headrace.rpc.service import RpcService
from tests.support.waiting import eventually

LIMITS = RpcLimits(
    max_request_bytes=1000,
    max_streams=30,
    handshake_s=4.0,
    idle_s=8.0,
    stall_s=2.0,
    stream_s=40.0,
)
OWN = Credentials(Secret.random())
PING = encode_request(1, {"op": "ping"}, [])


class Echo(RpcService):
    """Answers with what it is sent; `wait` waits for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.ended: list[int] = []

    def answer(self, request: Message) -> Message:
        match request.fields["op"]:
            case "wait":
                assert self.go.wait(60)
            case "go":
                self.go.set()
            case "large":
                return Message(request.number, {}, (np.zeros(64 << 20, np.uint8),))
            case "refuse":
                raise SpecError("no", "never")
            case "write":
                raise OSError(errno.ENOSPC, "No space left on device", "/tmp/rows")
            case "fail":
                raise RuntimeError("a bug")
            case "strange":
                return Message(request.number, {"x": object()})
        return Message(request.number, {"stream": request.stream}, request.arrays)

    def end_stream(self, stream: int) -> None:
        self.ended.append(stream)


class Scene:
    """A server whose time the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.loop = EventLoop(lambda: self.now_s)
        self.service = Echo()
        self.admission = Admission(2)
        self.server = RpcServer(
            self.service, OWN, limits=LIMITS, loop=self.loop, admitting=self.admission
        )
        self.stack = ExitStack()

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.server.port), timeout=60)
        return self.stack.enter_context(sock)

    def open(self) -> socket.socket:
        sock = self.connect()
        send(sock, OWN.token.reveal())
        assert sock.recv(8, socket.MSG_WAITALL) == ACCEPTED + LENGTH.pack(1000)
        # The server has read the clock.
        expected_s = self.now_s + LIMITS.idle_s
        assert eventually(
            lambda: any(each.deadline_s == expected_s for each in self.server._streams)
        )
        return sock

    def channel(self, **settings: Any) -> RpcChannel:
        address = TaskAddress(task="store 0", machine="m1", host="127.0.0.1", port=self.server.port)
        channel = RpcChannel(address, OWN, loop=self.loop, **settings)
        self.stack.callback(channel.close)
        return channel

    def close(self) -> None:
        self.service.go.set()
        self.stack.close()
        self.server.close()
        self.loop.close()


def send(sock: socket.socket, data: bytes) -> None:
    sock.sendall(LENGTH.pack(len(data)) + data)


def answers(sock: socket.socket) -> bool:
    send(sock, PING)
    return len(sock.recv(1000)) > 0


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


def test_a_silent_connection_is_cut(scene: Scene) -> None:
    silent = scene.connect()
    assert eventually(lambda: len(scene.server._unauthenticated) == 1)
    scene.now_s = 4.1
    assert silent.recv(1) == b""
    assert eventually(lambda: scene.service._counts["cut"] == 1)


def test_a_stream_that_works_is_left_alone(scene: Scene) -> None:
    stream = scene.open()
    for _ in range(5):
        scene.now_s += 7.0
        assert answers(stream)


def test_a_stream_with_nothing_to_say_is_cut_later(scene: Scene) -> None:
    stream = scene.open()
    scene.now_s = 8.1
    assert stream.recv(1) == b""


def test_bytes_that_trickle_in_do_not_extend_the_deadline(scene: Scene) -> None:
    stream = scene.open()
    stream.sendall(LENGTH.pack(1000))
    for _ in range(4):
        scene.now_s += 1.9
        stream.sendall(b"x")
    scene.now_s = 8.1
    assert stream.recv(1) == b""


def test_a_slow_reader_is_cut(scene: Scene) -> None:
    stream = scene.open()
    send(stream, encode_request(1, {"op": "large"}, []))
    # The beginning of the reply: the server writes.
    assert len(stream.recv(10)) == 10
    scene.now_s = 2.1
    assert eventually(lambda: len(scene.service.ended) == 1)


def test_work_of_the_service_may_take_long(scene: Scene) -> None:
    stream = scene.open()
    send(stream, encode_request(1, {"op": "wait"}, []))
    scene.now_s = 39.0
    other = scene.open()
    send(other, encode_request(1, {"op": "go"}, []))
    assert other.recv(1000)
    assert stream.recv(1000)


def test_no_stream_lives_for_ever(scene: Scene) -> None:
    stream = scene.open()
    for scene.now_s in (7.0, 14.0, 21.0, 28.0, 35.0, 39.0):
        assert answers(stream)
    scene.now_s = 40.1
    assert stream.recv(1) == b""


def test_a_request_that_is_too_large_ends_the_stream(scene: Scene) -> None:
    stream = scene.open()
    stream.sendall(LENGTH.pack(1001))
    assert stream.recv(1) == b""


def test_blocked_requests_do_not_keep_others_out(scene: Scene) -> None:
    blocked = [scene.channel().ask({"op": "wait"}, (), 60.0) for _ in range(20)]
    scene.channel().ask({"op": "go"}, (), 60.0).result(60)
    for each in blocked:
        each.result(60)


def test_idle_connections_need_no_threads(scene: Scene) -> None:
    before = threading.active_count()
    for _ in range(LIMITS.max_streams):
        scene.channel().ask({"op": "ping"}, (), 60.0).result(60)
    assert threading.active_count() - before < 15


def test_the_oldest_stranger_makes_room(scene: Scene) -> None:
    strangers = [scene.connect() for _ in range(3)]
    assert strangers[0].recv(1) == b""
    assert answers(scene.open())
    assert strangers[1].recv(1) == b""
    assert eventually(lambda: len(scene.admission) == 1)


def test_a_server_without_free_descriptors_closes_strangers_and_goes_on() -> None:
    near = socket.socket()
    failures = iter([OSError(errno.EMFILE, "too many files"), ConnectionAbortedError()])

    class Listening:
        def setblocking(self, flag: bool) -> None: ...

        def accept(self) -> tuple[socket.socket, tuple[str, int]]:
            for failure in failures:
                raise failure
            if admitted:
                raise BlockingIOError
            return near, ("h", 1)

    class Stranger:
        def evict(self) -> None:
            admission.remove(self)

    admitted: list[tuple[socket.socket, str]] = []
    admission, listening = Admission(5), cast(Any, Listening())
    admission.add(Stranger(), "x")
    assert _Listener(listening, lambda *peer: admitted.append(peer), admission).handle()
    assert admitted == [(near, "h")]
    assert len(admission) == 0
    near.close()


def test_a_service_learns_which_stream_asks_and_when_it_ends(scene: Scene) -> None:
    first, second = scene.channel(), scene.channel()
    streams = [
        channel.ask({"op": "x"}, (), 60.0).result(60).fields["stream"]
        for channel in (first, second, first)
    ]
    assert streams[0] == streams[2] != streams[1]
    first.close()
    assert eventually(lambda: scene.service.ended == [streams[0]])


def test_refusals_and_failures_are_answered(scene: Scene) -> None:
    channel = scene.channel()
    with pytest.raises(StoreError, match="store 0 on m1 refused to refuse: no"):
        channel.ask({"op": "refuse"}, (), 60.0).result(60)
    with pytest.raises(DiskFullError, match="no space left on the disk to write /tmp/rows") as full:
        channel.ask({"op": "write"}, (), 60.0).result(60)
    # As its own failure: the policy does not repeat it as often as the loss of a store.
    assert full.value.exit_code == 1
    with pytest.raises(StoreError, match="the store failed to answer"):
        channel.ask({"op": "fail"}, (), 60.0).result(60)
    with pytest.raises(StoreError, match="the store failed to answer"):
        channel.ask({"op": "strange"}, (), 60.0).result(60)
    assert channel.ask({"op": "x"}, (np.arange(3),), 60.0).result(60).arrays[0].tolist() == [
        0,
        1,
        2,
    ]


def test_a_late_reply_ends_the_channel(scene: Scene) -> None:
    channel = scene.channel()
    early = channel.ask({"op": "wait"}, (), 30.0)
    late = channel.ask({"op": "x"}, (), 3.0)
    scene.now_s = 3.1
    for future in (late, early):
        with pytest.raises(StoreLostError, match="store 0 on m1 did not answer x in 3 s"):
            future.result(60)
    with pytest.raises(StoreLostError, match="did not answer"):
        channel.ask({"op": "x"}, (), 3.0).result(60)


def test_an_idle_channel_sends_pings(scene: Scene) -> None:
    channel = scene.channel(ping_s=5.0, ping_timeout_s=1.0)
    asked = channel._next_number
    for number in range(1, 4):
        scene.now_s += 5.1
        assert eventually(lambda number=number: channel._next_number == asked + number)  # type: ignore[misc]
        assert eventually(lambda: not channel._pending)
    channel.ask({"op": "x"}, (), 3.0).result(60)


def test_a_closed_server_ends_its_channels(scene: Scene) -> None:
    channel = scene.channel()
    pending = channel.ask({"op": "wait"}, (), 60.0)
    scene.service.go.set()
    scene.server.close()
    assert eventually(lambda: channel._failure is not None)
    with pytest.raises(StoreLostError, match="store 0 on m1 is gone"):
        channel.ask({"op": "x"}, (), 60.0).result(60)
    assert pending.done()
    with pytest.raises(StoreLostError, match="store 0 on m1 is gone"):
        scene.channel()


def test_a_closed_channel_fails_its_requests(scene: Scene) -> None:
    channel = scene.channel()
    pending = channel.ask({"op": "wait"}, (), 60.0)
    channel.close()
    with pytest.raises(StoreError, match="the connection to store 0 on m1 was closed"):
        pending.result(60)


def test_requests_that_cannot_be_sent_leave_the_channel_alone(scene: Scene) -> None:
    channel = scene.channel()
    with pytest.raises(SpecError, match="arrays cannot be sent: complex64"):
        channel.ask({"op": "x"}, (np.zeros(2, np.complex64),), 3.0)
    with pytest.raises(
        StoreError, match=r"refused to x: the request has \d+ bytes, at most 1000 are"
    ):
        channel.ask({"op": "x"}, (np.zeros(1000),), 3.0).result(60)
    assert not channel._pending
    channel.ask({"op": "x"}, (), 60.0).result(60)


def test_an_idle_channel_keeps_no_reply_in_memory(scene: Scene) -> None:
    channel = scene.channel()
    reply = channel.ask({"op": "x"}, (np.arange(3),), 60.0).result(60)
    kept = weakref.ref(reply.arrays[0])
    del reply
    assert eventually(lambda: kept() is None)


def test_a_ping_does_not_wait_for_a_thread_that_sends(scene: Scene) -> None:
    channel = scene.channel()
    with channel._connection._writing:
        channel._ping()
    assert not channel._pending
    channel.ask({"op": "x"}, (), 60.0).result(60)


def first_expiry_s(times_s: Iterator[float]) -> float:
    """When a deadline at 5 s is handled, by a clock that goes on with every look at it."""
    reader, writer = os.pipe()

    class Late(Watched):
        deadline_s = 5.0

        def __init__(self) -> None:
            self.expired_s: list[float] = []

        def fileno(self) -> int:
            return reader

        def handle(self) -> bool:
            return False

        def expire(self, now_s: float) -> None:
            self.expired_s.append(now_s)

        def release(self) -> None: ...

    loop, late = EventLoop(lambda: next(times_s)), Late()
    loop.watch(late)
    assert eventually(lambda: bool(late.expired_s))
    loop.close()
    os.close(reader)
    os.close(writer)
    return late.expired_s[0]


def test_a_pause_of_the_own_process_is_not_a_missed_deadline() -> None:
    # A clock that stands still for a while, jumps, and goes on.
    assert first_expiry_s(itertools.chain([0.0, 0.2, 0.2], itertools.count(100.0, 0.2))) > 100.1


def test_deadlines_hold_while_every_check_is_late() -> None:
    assert first_expiry_s(itertools.count(0.0, 1.2)) < 10


def test_a_malformed_reply_frees_a_thread_that_sends(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = TaskAddress(
            task="store 0", machine="m1", host="127.0.0.1", port=listener.getsockname()[1]
        )
        peers: list[socket.socket] = []

        def accept() -> None:
            peer, _ = listener.accept()
            peers.append(peer)
            peer.recv(4 + len(OWN.token.reveal()), socket.MSG_WAITALL)
            peer.sendall(ACCEPTED + LENGTH.pack(2**31))

        thread = threading.Thread(target=accept)
        thread.start()
        channel = RpcChannel(address, OWN, loop=scene.loop)
        thread.join()
        asked: list[Future[Message]] = []
        large = np.zeros(64 << 20, np.uint8)
        sender = threading.Thread(
            target=lambda: asked.append(channel.ask({"op": "x"}, (large,), 60.0))
        )
        sender.start()
        assert eventually(lambda: bool(channel._pending))
        # It answers, wrongly, and never reads.
        peers[0].sendall(LENGTH.pack(8) + b"nonsense")
        sender.join(60)
        with pytest.raises(StoreError, match="store 0 on m1 sent an invalid reply"):
            asked[0].result(60)
        peers[0].close()
