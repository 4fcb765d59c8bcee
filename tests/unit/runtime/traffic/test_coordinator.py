"""The controller's thread, with an agent that is only a socket."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.rpc.admission import Admission
from headrace.runtime.traffic.coordinator import TrafficControl
from headrace.runtime.traffic.messages import Line, register
from headrace.runtime.traffic.rate_allocation import RateAllocator
from tests.support.waiting import eventually

DEADLINE_S = 20.0


class Scene:
    """A controller, whose time a test may set."""

    def __init__(self, **settings: Any) -> None:
        machines = [
            {"name": name, "nic": "1Gbps", "resources": {"cpu": 8}} for name in ("m0", "m1")
        ]
        cluster = Cluster.model_validate({"version": 1, "machines": machines})
        job = Job(trainers=2, batch_size=8, model_bytes=4e6)
        made = plan(cluster, job, method="colocate", policy="priority")
        self.told: list[str] = []
        self.control = TrafficControl(made, self.told.append, **settings)
        self.port = self.control.begin("127.0.0.1")
        self.token = self.control.order("m0", "lo", {}, "127.0.0.1", self.port)["token"]
        self.stack = ExitStack()

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)
        return self.stack.enter_context(sock)

    def register(self, machine: str) -> Line:
        line = Line(self.connect())
        register(line, self.token.encode(), machine)
        assert eventually(lambda: machine in self.control._lines)
        return line

    def close(self) -> None:
        self.stack.close()
        self.control.close()


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(RateAllocator, "warm", lambda self: None)
    made = Scene(admitting=Admission(20))
    yield made
    made.close()


def is_cut(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionError:
        return True


def test_a_crowd_does_not_lock_agents_out(scene: Scene) -> None:
    crowd = [scene.connect() for _ in range(100)]
    scene.register("m0")
    scene.register("m1")
    assert crowd[0].recv(4096).startswith(b'{"nonce":')
    assert crowd[0].recv(1) == b""
    assert len(scene.control._candidates) <= 20


def test_a_proof_that_is_no_text_of_ours_is_wrong(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer in (b'{"machine":"m0","nonce":"x","proof":"\xc3\xa9"}\n', b"[" * 4000 + b"\n"):
        stranger = scene.connect()
        assert stranger.recv(4096)
        stranger.sendall(answer)
        assert is_cut(stranger)
    scene.register("m0")
    assert capsys.readouterr().err == ""


def test_bytes_that_trickle_in_do_not_extend_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RateAllocator, "warm", lambda self: None)
    times_s = [0.0]
    scene = Scene(clock=lambda: times_s[-1])
    try:
        slow = scene.connect()
        assert slow.recv(4096)
        for time_s in (5.0, 10.0, 14.9):
            times_s.append(time_s)
            slow.sendall(b"{")
        assert eventually(lambda: len(scene.control._candidates) == 1)
        times_s.append(15.1)
        assert is_cut(slow)
    finally:
        scene.close()


def test_agents_that_send_nonsense_are_dropped_and_the_controller_goes_on(scene: Scene) -> None:
    for nonsense in ({"nic_out": -1}, {"open": [[3, 1]]}, {"used": [1]}, {"nic_out": 10**400}):
        line = scene.register("m0")
        line.send(nonsense)
        with pytest.raises((EOFError, ConnectionError)):
            line.receive()
    assert scene.control.figures()["agents"] == 0
    scene.register("m0").send({"used": {"cpu_s": 1.0}})
    assert eventually(lambda: scene.control.figures()["agents_cpu_s"] == 1.0)


def test_without_descriptors_a_stranger_makes_room(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = scene.connect()
    assert first.recv(4096)
    failures = [OSError(errno.EMFILE, "too many files")] * 3

    accept = socket.socket.accept

    def fail(listener: socket.socket) -> tuple[socket.socket, Any]:
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail)
    scene.register("m0")
    assert not failures
    assert first.recv(1) == b""


def test_agents_are_welcome_while_the_policy_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, decided = threading.Event(), threading.Event()
    monkeypatch.setattr(RateAllocator, "warm", lambda self: compiled.wait(DEADLINE_S))
    monkeypatch.setattr(RateAllocator, "decide", lambda self, now_s: decided.set())
    machines = [{"name": name, "nic": "1Gbps", "resources": {"cpu": 8}} for name in ("m0", "m1")]
    cluster = Cluster.model_validate({"version": 1, "machines": machines})
    made = plan(
        cluster,
        Job(trainers=2, batch_size=8, model_bytes=4e6),
        method="colocate",
        policy="priority",
    )
    control = TrafficControl(made, lambda word: None)
    port = control.begin("127.0.0.1")
    order = control.order("m0", "lo", {}, "127.0.0.1", port)
    try:
        with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock:
            line = Line(sock)
            register(line, order["token"].encode(), "m0")
            line.send({"nic_out": 125e6, "open": []})
            assert not decided.wait(0.5)
            compiled.set()
            assert decided.wait(DEADLINE_S)
    finally:
        compiled.set()
        control.close()
