"""Endpoints of the driver, of task actors and of machines, to be asked wrongly."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

from headrace.prefork.server import ForkServer
from headrace.prefork.server import send as send_request
from headrace.runtime.cluster.bandwidth_probe import TOKEN_BYTES, Receiver
from headrace.runtime.protocol.sampler_requests import RequestServer
from headrace.runtime.protocol.trainer_messages import Inbox
from headrace.runtime.traffic.agent import Agent, AgentConfig
from headrace.runtime.traffic.coordinator import TrafficControl
from headrace.runtime.traffic.messages import Authenticator, Line, register
from headrace.runtime.workers.trainer import TrainerActor
from tests.support.fuzz_endpoints import (
    Endpoint,
    Handshake,
    ParameterServer,
    Sampler,
    Store,
    digest_of,
)
from tests.support.fuzz_requests import Draw, fuzzed_line, mutated_bytes, pick
from tests.support.shaped_plan import make_plan


class Controller(Endpoint):
    """The traffic controller of the driver: the handshake, and messages of an agent."""

    name = "traffic controller"
    _plan: Any = None

    def open(self) -> None:
        if Controller._plan is None:
            Controller._plan = make_plan()
        self._told: list[str] = []
        self._control = TrafficControl(self._plan, self._told.append)
        port = self._control.begin("127.0.0.1")
        self.stack.callback(self._control.close)
        self._token = self._control._token.encode()
        self._place = ("127.0.0.1", port)
        end = ["store0", "10.0.0.1", 7000, "10.0.0.2", 40000]
        self._rights: list[dict[str, Any]] = [
            {"nic_out": 125e6}, {"nic": 60e6}, {"ends": [end]}, {"gone": [end]},
            {"at": {"sampler0.0": 3}}, {"open": [[0, 1000]]}, {"used": {"cpu_s": 1.0}},
            {"problem": "no interface"}, {"nic_out": 1e8, "open": []},
        ]  # fmt: skip

    def try_one(self, draw: Draw) -> str:
        if draw.random() < 0.6:
            return self._wrong_proof(draw)
        with socket.create_connection(self._place, 60) as sock:
            line = Line(sock)
            register(line, self._token, pick(draw, ("m0", "m1", "m7")))
            with suppress(OSError):
                for _ in range(int(draw.integers(1, 4))):
                    sock.sendall(fuzzed_line(draw, self._rights) + b"\n")
                sock.shutdown(socket.SHUT_WR)
                while sock.recv(1 << 16):
                    pass
        thread = self._control._thread
        is_alive = thread is not None and thread.is_alive()
        while is_alive and self._control._lines:
            pass
        return "cut" if is_alive else "the controller has ended"

    def _wrong_proof(self, draw: Draw) -> str:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            authenticator = Authenticator(Line(ours), self._token)
            proof = pick(draw, ("a" * 64, "é" * 64, "\ud800", "", "0"))
            right = {"machine": "m0", "nonce": "x", "proof": proof}
            theirs.sendall(fuzzed_line(draw, [right])[:4000] + b"\n")
            theirs.shutdown(socket.SHUT_WR)
            try:
                while authenticator.receive() is None:
                    pass
            except EOFError:
                return "cut"
        return "authenticated without the token"


class FakeTree:
    """Classes and filters as an agent keeps them, without a kernel."""

    nic_bytes_per_s = trunk_bytes_per_s = 125e6

    def __init__(self) -> None:
        self.filters: dict[Any, int] = {}
        self.shares: dict[int, Any] = {}

    def add(self, number: int, prio: int, connected: Any) -> None:
        own, host, peer = connected
        socket.inet_aton(host)
        self.filters[own, host, peer] = number << prio

    def remove(self, connected: Any) -> None:
        self.filters.pop(connected, None)

    def change(self, shares: Mapping[int, Any]) -> None:
        for number, share in shares.items():
            self.shares[number] = [int(each) for each in asdict(share).values()]


class TrafficAgent(Endpoint):
    """An agent, and what a controller tells it."""

    name = "traffic agent"

    def open(self) -> None:
        self._tree = FakeTree()
        self._rights: list[dict[str, Any]] = [
            {"add": [[0, 2, 7000, "10.0.0.2", 40000]]},
            {"remove": [[7000, "10.0.0.2", 40000]]},
            {"shares": [[0, 1000, 2000, 65536]]},
            {"bye": True},
        ]

    def digest(self) -> str:
        return digest_of(self._tree.filters, self._tree.shares)

    def try_one(self, draw: Draw) -> str:
        before = self.digest()
        ours, theirs = socket.socketpair()
        config = AgentConfig("m0", "lo", 125e6, {}, {}, "127.0.0.1", 1, "x", 3600.0)
        marks = SimpleNamespace(find=lambda: None, poll=dict)
        with ours, theirs:
            line = Line(theirs)
            tree = cast(Any, self._tree)
            agent = Agent(config, line, tree, lambda: ([], []), cast(Any, marks))
            agent._next_find_s = float("inf")
            ours.sendall(fuzzed_line(draw, self._rights) + b"\n")
            try:
                for message in line.receive():
                    agent.apply(message)
            except EOFError:
                return self.compare(before, "cut")
        return "answered"


class Requests(Endpoint):
    """Requests of a trainer process to its task actor."""

    name = "trainer requests"

    def open(self) -> None:
        self._begun: list[Any] = []

        def begin(*given: Any) -> int:
            self._begun.append(given)
            return len(self._begun)

        remote = SimpleNamespace(remote=begin)
        one = SimpleNamespace(begin=remote, begin_again=remote, place=SimpleNamespace(remote=begin))
        actor = cast(Any, TrainerActor.__new__(TrainerActor))
        actor.task, actor.machine, actor._samplers = "trainer0", "m0", [one, one]
        actor._places = lambda samplers, began: [{"port": each} for each in began]
        self._server = cast(Any, RequestServer.__new__(RequestServer))
        self._server._answer = actor._answer
        seeds = self.scratch / "seeds"
        seeds.write_bytes(b"x")
        self._rights: list[dict[str, Any]] = [
            {"kind": "start_samplers", "configs": [{"a": 1}] * 2, "seeds": [None, str(seeds)]},
            {"kind": "replace_sampler", "sampler": 1, "epoch": 0, "batch": 3, "why": "lost"},
        ]

    def digest(self) -> str:
        return digest_of(len(self._begun))

    def try_one(self, draw: Draw) -> str:
        before = self.digest()
        reply = self._server._reply(fuzzed_line(draw, self._rights))
        json.dumps(reply)
        if "error" not in reply:
            return "answered"
        if reply["error"]["remedy"] == "see the logs of the run":
            return f"{reply['error']['problem']}"
        return self.compare(before, "refused")


class Messages(Endpoint):
    """Datagrams of a trainer process."""

    name = "trainer messages"

    def open(self) -> None:
        self._path = self.scratch / f"messages-{secrets.token_hex(4)}"
        self._inbox = Inbox(self._path)
        self.stack.callback(self._inbox.close)
        self._rights: list[dict[str, Any]] = [
            {"kind": "report", "figures": {"loss": 0.5}},
            {"kind": "waits", "task": "store0", "is_waiting": True},
            {"kind": "note", "text": "x"},
            {"kind": "checkpoint", "iteration": 3, "bytes": 10},
        ]

    def try_one(self, draw: Draw) -> str:
        data = fuzzed_line(draw, self._rights)[:60_000] or b"{}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(data, str(self._path))
        return "answered" if list(self._inbox.receive(60.0)) else "ignored"


class Forks(Endpoint):
    """A fork server, and clients that are not admitted."""

    name = "fork server"

    def open(self) -> None:
        listener = self.stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(str(self.scratch / f"fork-{secrets.token_hex(4)}"))
        listener.listen(16)
        self._listener = listener
        self._server = ForkServer(listener, {"version": "1"}, None)
        self.stack.callback(self._server._selector.close)
        self._rights: list[dict[str, Any]] = [
            {"identity": {"version": "2"}, "command": ["x"], "environment": {}},
            {"identity": {"version": "2"}},
        ]

    def digest(self) -> str:
        return digest_of(len(self._server._clients), self._server._was_used)

    def try_one(self, draw: Draw) -> str:
        before = self.digest()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(self._listener.getsockname())
            data = fuzzed_line(draw, self._rights)
            if draw.random() < 0.2:
                send_request(client, {"identity": 0})
            else:
                length = len(data) if draw.random() < 0.9 else int(draw.integers(2**32))
                client.sendall(length.to_bytes(4, "big") + data)
            client.shutdown(socket.SHUT_WR)
            self._server._accept()
            (accepted,) = self._server._clients
            if self._server._receive(accepted) is not None:
                return "forked"
            if accepted in self._server._clients:
                self._server._drop(accepted)
        return self.compare(before, "cut")


class Probe(Endpoint):
    """The receiver of a bandwidth measurement."""

    name = "bandwidth probe"

    def open(self) -> None:
        self._token = os.urandom(TOKEN_BYTES)
        self._receiver = Receiver("127.0.0.1", self._token, 1, 1.0)
        self.stack.callback(self._receiver.close)

    def digest(self) -> str:
        return digest_of(len(self._receiver._begins), len(self._receiver._came))

    def try_one(self, draw: Draw) -> str:
        before, token = self.digest(), self._token
        while token[:TOKEN_BYTES] == self._token:
            token = mutated_bytes(draw, self._token)
        place = ("127.0.0.1", self._receiver.port)
        with socket.create_connection(place, 60) as sock, suppress(OSError):
            sock.sendall(token)
            sock.shutdown(socket.SHUT_WR)
            if sock.recv(1):
                return "it has answered"
        return self.compare(before, "cut")


ENDPOINTS: Mapping[str, tuple[type[Endpoint], float]] = {
    each.name: (each, weight)
    for each, weight in (
        (Store, 0.28), (ParameterServer, 0.28), (Sampler, 0.08), (Handshake, 0.06),
        (Controller, 0.08), (TrafficAgent, 0.08), (Requests, 0.05), (Messages, 0.04),
        (Forks, 0.03), (Probe, 0.02),
    )
}  # fmt: skip
"""By name, with the share of requests."""
