"""The controller's thread, with an agent that is only a socket."""

from __future__ import annotations

import socket
import threading

import pytest

from headrace.api.plan import plan
from headrace.core.cluster import Cluster
from headrace.core.job import Job
from headrace.runtime.traffic.coordinator import TrafficControl
from headrace.runtime.traffic.messages import Line, register
from headrace.runtime.traffic.rate_allocation import RateAllocator

DEADLINE_S = 20.0


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
