"""Bytes between two ends of a real connection; only who knows the token is heard."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from headrace.runtime.cluster import bandwidth_probe
from headrace.runtime.cluster.bandwidth_probe import Receiver

pytestmark = pytest.mark.integration

HOME = "127.0.0.1"
TOKEN = secrets.token_bytes(bandwidth_probe.TOKEN_BYTES)


def test_a_rate_is_measured() -> None:
    receiver = Receiver(HOME, TOKEN, num_streams=2, duration_s=2.0)
    said: list[str] = []
    sender = threading.Thread(
        target=lambda: said.append(bandwidth_probe.send(HOME, receiver.port, TOKEN, 2, 2.0))
    )
    sender.start()
    assert receiver.bytes_per_s() > 1e6
    sender.join()
    assert said == [""]
    assert "Refused" in bandwidth_probe.send(HOME, receiver.port, TOKEN, 2, 0.2)


def test_strangers_are_not_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth_probe, "_TIMEOUT_S", 0.5)
    receiver = Receiver(HOME, TOKEN, num_streams=1, duration_s=0.2)
    with (
        socket.create_connection((HOME, receiver.port)) as wrong,
        socket.create_connection((HOME, receiver.port)) as short,
    ):
        wrong.sendall(secrets.token_bytes(bandwidth_probe.TOKEN_BYTES))
        short.sendall(TOKEN[:-1])
        wrong.settimeout(10)
        assert wrong.recv(1) == b""  # closed
        short.shutdown(socket.SHUT_WR)
        assert receiver.bytes_per_s() == 0


def test_silent_connections_do_not_stand_in_the_way() -> None:
    receiver = Receiver(HOME, TOKEN, num_streams=1, duration_s=2.0)
    with socket.create_connection((HOME, receiver.port)):
        sender = threading.Thread(
            target=bandwidth_probe.send, args=(HOME, receiver.port, TOKEN, 1, 2.0)
        )
        sender.start()
        assert receiver.bytes_per_s() > 1e6
        sender.join()


def test_a_crowd_does_not_stand_in_the_way() -> None:
    receiver = Receiver(HOME, TOKEN, num_streams=1, duration_s=0.4)
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection((HOME, receiver.port)))
        sender = threading.Thread(
            target=bandwidth_probe.send, args=(HOME, receiver.port, TOKEN, 1, 0.4)
        )
        sender.start()
        assert receiver.bytes_per_s() > 1e6
        sender.join()


def test_bytes_that_trickle_in_do_not_extend_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bandwidth_probe, "_TIMEOUT_S", 0.5)
    receiver = Receiver(HOME, TOKEN, num_streams=1, duration_s=0.2)
    with socket.create_connection((HOME, receiver.port)) as slow, suppress(ConnectionError):
        for _ in range(bandwidth_probe.TOKEN_BYTES - 1):
            time.sleep(0.1)
            slow.sendall(b"x")
        pytest.fail("it was listened to for 3 s")
    receiver.close()


def test_a_receiver_without_descriptors_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    failures, accept = [OSError(errno.EMFILE, "too many files")] * 3, socket.socket.accept

    def fail(listener: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop()
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail)
    receiver = Receiver(HOME, TOKEN, num_streams=1, duration_s=0.2)
    sender = threading.Thread(
        target=bandwidth_probe.send, args=(HOME, receiver.port, TOKEN, 1, 0.2)
    )
    sender.start()
    assert receiver.bytes_per_s() > 0
    sender.join()
    assert not failures


def test_facts_of_this_machine() -> None:
    found = bandwidth_probe.facts(HOME)
    assert found["cpu_model"]
    assert found["num_cores"] >= 1
    assert found["link_bytes_per_s"] == 0  # a loopback has no speed


def test_link_speed_is_read_where_the_address_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for card, speed in (("eth0", "10000\n"), ("eth1", "-1\n")):
        (tmp_path / card).mkdir()
        (tmp_path / card / "speed").write_text(speed)
    addresses = {"eth0": "10.0.0.1", "eth1": "10.0.0.2"}
    monkeypatch.setattr(bandwidth_probe, "_address_of", addresses.__getitem__)
    assert bandwidth_probe._link_bytes_per_s("10.0.0.1", tmp_path) == 1.25e9
    assert bandwidth_probe._link_bytes_per_s("10.0.0.2", tmp_path) == 0
    assert bandwidth_probe._link_bytes_per_s("10.0.0.3", tmp_path) == 0


def test_nodes_need_no_headrace() -> None:
    ray = pytest.importorskip("ray")
    ray.cloudpickle.register_pickle_by_value(bandwidth_probe)
    try:
        data = ray.cloudpickle.dumps(bandwidth_probe.Probe)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(bandwidth_probe)
    import subprocess
    import sys

    code = (
        "import sys; sys.modules['headrace'] = None\n"
        "from ray import cloudpickle\n"
        "probe = cloudpickle.loads(sys.stdin.buffer.read())('127.0.0.1')\n"
        "assert probe.facts()['cpu_model'] and probe.listen(b'x' * 32, 1, 0.1) > 0"
    )
    subprocess.run([sys.executable, "-c", code], input=data, check=True, timeout=120)
