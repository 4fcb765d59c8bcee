from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from headrace.core.errors import SpecError
from headrace.rpc import guard as guard_module
from headrace.rpc.config import RpcLimits
from headrace.rpc.guard import ROUND_S, Guard, Stream, parse_peer

LIMITS = RpcLimits(
    max_request_bytes=1000,
    max_streams=2,
    handshake_s=4 * ROUND_S,
    handshake_bytes=100,
    idle_s=8 * ROUND_S,
    stall_s=2 * ROUND_S,
    stream_s=40 * ROUND_S,
)


class Scene:
    """A connection inside this process, watched round by round."""

    def __init__(self, guard: Guard, near: socket.socket, far: socket.socket) -> None:
        self.guard, self.near, self.far = guard, near, far
        self.port = near.getsockname()[1]
        host, port = far.getsockname()
        self.peer = f"ipv4:{host}:{port}"

    def rounds_until_cut(self, at_most: int) -> int | None:
        self.near.setblocking(False)
        for i in range(at_most):
            self.guard.inspect(self.port)
            if self.guard.num_cut:
                return i + 1
        return None

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        with self.guard.admit(self.peer) as stream:
            stream.registered = True
            yield stream


@pytest.fixture
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        far = stack.enter_context(socket.create_connection(listener.getsockname()))
        near = stack.enter_context(listener.accept()[0])
        yield Scene(Guard(LIMITS), near, far)


def test_a_silent_connection_is_cut(scene: Scene) -> None:
    assert scene.rounds_until_cut(9) == 5
    assert scene.far.recv(1) == b""


def test_a_flood_before_the_greeting_is_cut_at_once(scene: Scene) -> None:
    scene.far.sendall(bytes(101))
    assert scene.rounds_until_cut(9) == 1


def test_a_stream_that_works_is_left_alone(scene: Scene) -> None:
    with scene.stream() as stream:
        for _ in range(30):
            scene.far.sendall(bytes(900))
            stream.enter("reading")
            assert scene.rounds_until_cut(1) is None


def test_a_stream_with_nothing_to_say_is_cut_later(scene: Scene) -> None:
    with scene.stream():
        assert scene.rounds_until_cut(20) == 10


def test_a_slow_reader_is_cut_sooner(scene: Scene) -> None:
    with scene.stream() as stream:
        stream.enter("writing")
        assert scene.rounds_until_cut(20) == 4


def test_work_of_the_store_itself_may_take_long(scene: Scene) -> None:
    with scene.stream() as stream:
        stream.enter("working")
        assert scene.rounds_until_cut(35) is None


def test_an_endless_request_is_cut(scene: Scene) -> None:
    with scene.stream():
        assert scene.rounds_until_cut(1) is None
        scene.far.sendall(bytes(2001))
        assert scene.rounds_until_cut(3) == 1


def test_no_stream_lives_for_ever(scene: Scene) -> None:
    with scene.stream() as stream:
        for _ in range(41):
            stream.enter("reading")
            assert scene.rounds_until_cut(1) is None
        assert scene.rounds_until_cut(1) == 1


def test_other_sockets_are_left_alone(scene: Scene) -> None:
    scene.port += 1
    assert scene.rounds_until_cut(20) is None


def test_there_is_room_for_so_many_streams(scene: Scene) -> None:
    refused = pytest.raises(SpecError, match="2 clients already")
    with scene.stream(), scene.stream(), refused, scene.stream():
        pass
    with scene.stream():
        pass


@pytest.mark.parametrize(
    ("peer", "parsed"),
    [
        ("ipv4:10.0.0.1:4711", ("10.0.0.1", 4711)),
        ("ipv6:[::1]:80", ("::1", 80)),
        ("ipv6:%5B::1%5D:80", ("::1", 80)),
        ("ipv6:[::ffff:10.0.0.1]:80", ("10.0.0.1", 80)),
        ("unix:/tmp/x", ("", 0)),
        ("", ("", 0)),
    ],
)
def test_peers_are_understood(peer: str, parsed: tuple[str, int]) -> None:
    assert parse_peer(peer) == parsed


def test_memory_goes_back_after_a_stream_has_ended(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[None] = []
    monkeypatch.setattr(guard_module, "return_freed_memory", lambda: returned.append(None))
    with scene.stream():
        assert scene.rounds_until_cut(3) is None
        assert not returned
    scene.guard.inspect(scene.port)
    assert len(returned) == 1
    # gRPC takes its time, but not for ever.
    assert scene.rounds_until_cut(100) is not None
    for _ in range(100):
        scene.guard.inspect(scene.port)
    assert 2 < len(returned) < 100
