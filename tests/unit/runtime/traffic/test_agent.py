"""Which flows are open, whose sockets are whose, and what the kernel is told."""

from __future__ import annotations

import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.linux.htb import TRUNK, HtbClass, from_kernel
from headrace.linux.netlink import Connection, Counters, class_message
from headrace.runtime.traffic.agent import Agent, AgentConfig, OpenFlows
from headrace.runtime.traffic.connections import End
from headrace.runtime.traffic.htb_tree import filter_keys
from headrace.runtime.traffic.marks import Marks
from headrace.runtime.traffic.messages import Authenticator, Line, register
from headrace.runtime.traffic.socket_owners import SocketOwners
from headrace.tracing.task_trace import TraceWriter, mark_path

NIC = 50e6


def test_a_flow_is_open_while_it_sends_or_waits() -> None:
    flows = OpenFlows(NIC)
    assert not flows.update({0: Counters(0, 0), 1: Counters(0, 0)}, 0.0)
    assert flows.update({0: Counters(200_000, 0), 1: Counters(0, 1500)}, 0.05)
    assert flows.open() == [[0, 200_000], [1, 0]]
    assert not flows.update({0: Counters(400_000, 0), 1: Counters(0, 1500)}, 0.1)
    assert flows.update({0: Counters(400_100, 0), 1: Counters(0, 1500)}, 0.15)
    assert flows.open() == [[1, 0]]


def test_acknowledgements_open_no_flow() -> None:
    flows = OpenFlows(NIC)
    flows.update({0: Counters(0, 0)}, 0.0)
    assert not flows.update({0: Counters(9_000, 0)}, 0.05)


def test_a_starved_flow_stays_open() -> None:
    flows = OpenFlows(NIC)
    flows.update({0: Counters(0, 0)}, 0.0)
    assert flows.update({0: Counters(200_000, 0)}, 0.05)
    assert not flows.update({0: Counters(209_000, 0)}, 0.1)
    assert flows.update({0: Counters(209_100, 0)}, 0.15)


def test_what_a_flow_has_sent_counts_from_its_opening() -> None:
    flows = OpenFlows(NIC)
    flows.update({0: Counters(10_000_000, 0)}, 0.0)
    flows.update({0: Counters(11_000_000, 0)}, 0.05)
    assert flows.open() == [[0, 1_000_000]]


def test_sockets_of_this_process_are_found_and_missed(tmp_path: Path) -> None:
    import os

    named = tmp_path / "store0.pid"
    here, there = ("10.0.0.1", 7000), ("10.0.0.2", 40000)
    one, other = socket.socketpair()
    with one, other:
        inodes = [os.fstat(each.fileno()).st_ino for each in (one, other)]
        open_ = [Connection(here, there, inodes[0]), Connection(here, ("10.0.0.3", 1), 1)]
        finder = SocketOwners({"store0": named}, lambda: list(open_))
        assert finder.poll() == ([], [])
        named.write_text(str(os.getpid()))
        end = End("store0", here, there)
        assert finder.poll() == ([end], [])
        assert finder.poll() == ([], [])
        open_.clear()
        assert finder.poll() == ([], [end])


def test_marks_are_read_once_they_are_there(tmp_path: Path) -> None:
    marks = Marks({"sampler0.0": mark_path(tmp_path / "trace-sampler0.0.jsonl")})
    marks.find()
    assert marks.poll() == {}
    with TraceWriter(tmp_path / "trace-sampler0.0.jsonl", "sampler0.0", lambda: 0.0) as recorder:
        recorder.mark(7)
        marks.find()
        assert marks.poll() == {"sampler0.0": 7}
        assert marks.poll() == {}
        recorder.mark(8)
        assert marks.poll() == {"sampler0.0": 8}
    with TraceWriter(tmp_path / "trace-sampler0.0.jsonl", "sampler0.0", lambda: 0.0) as recorder:
        assert marks.poll() == {}
        recorder.mark(3)
        assert marks.poll() == {"sampler0.0": 3}
    marks.close()


def test_a_filter_names_the_peer_and_both_ports() -> None:
    assert filter_keys((7000, "10.78.0.2", 40000)) == [
        "0x0a4e0002/0xffffffff+16",
        "0x1b589c40/0xffffffff+20",
    ]


def test_rates_are_told_in_bytes_and_bursts_in_ticks() -> None:
    data_rates = from_kernel(1e6), from_kernel(50e6)
    message = class_message(3, HtbClass(0x10010, TRUNK, *data_rates, 2, 120_000))
    _, index, handle, parent = struct.unpack_from("=BxxxiII", message)
    assert (index, handle, parent) == (3, 0x10010, TRUNK)
    at = message.index(struct.pack("=I", 1_000_000))
    assert struct.unpack_from("=I", message, at + 12) == (50_000_000,)
    burst, ceil_burst, quantum, _, prio = struct.unpack_from("=IIIII", message, at + 16)
    # 65,536 bytes at 1 MB/s last 65.5 ms; a tick is 64 ns.
    assert burst == round(65_536 / 1e6 * 1e9 / 64)
    assert ceil_burst == round(100_000 / 50e6 * 1e9 / 64)
    assert (quantum, prio) == (120_000, 2)


def test_fast_cards_have_rates_beyond_32_bits() -> None:
    rate = from_kernel(12.5e9)
    message = class_message(3, HtbClass(0x10010, TRUNK, rate, rate))
    assert message.count(struct.pack("=Q", 12_500_000_000)) == 2


@pytest.mark.parametrize("has_token", [True, False])
def test_only_who_has_the_token_is_welcome(has_token: bool) -> None:
    ours, theirs = socket.socketpair()
    for each in (ours, theirs):
        each.settimeout(60.0)
    outcome: list[str] = []

    def agent() -> None:
        with theirs:
            try:
                register(Line(theirs), b"token" if has_token else b"guess", "m0")
            except EOFError:
                outcome.append("refused")

    thread = threading.Thread(target=agent)
    thread.start()
    with ours:
        authenticator = Authenticator(Line(ours), b"token")
        if has_token:
            assert authenticator.receive() == "m0"
        else:
            with pytest.raises(EOFError):
                authenticator.receive()
    thread.join()
    assert outcome == ([] if has_token else ["refused"])


@pytest.mark.parametrize(
    "answer",
    [
        {"machine": "m0", "nonce": "x", "proof": "é" * 64},
        {"machine": "m0", "nonce": "x", "proof": "\ud800"},
        {"machine": "m0", "nonce": "x", "proof": None},
        {"machine": "m0", "nonce": "x"},
        "[" * 4000,
        "9" * 4000,
        b"\xff",
    ],
    ids=str,
)
def test_any_other_answer_is_a_wrong_proof(answer: object) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        authenticator = Authenticator(Line(ours), b"token")
        text = json.dumps(answer) if isinstance(answer, dict) else answer
        theirs.sendall((text if isinstance(text, bytes) else str(text).encode()) + b"\n")
        with pytest.raises(EOFError):
            authenticator.receive()


@pytest.mark.parametrize("challenge", ["é", "\ud800"])
def test_an_agent_answers_any_challenge(challenge: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(json.dumps({"nonce": challenge}).encode() + b"\n")
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            register(Line(theirs), b"token", "m0")
        assert b'"proof"' in ours.recv(1000)


@pytest.mark.parametrize(
    "message",
    [
        {"add": [[0, 2, 7000, "nowhere", 40000]]},
        {"remove": [[7000, "10.0.0.2", 40000]], "shares": [[1, 2]]},
        {"shares": [[0, -1, 5, 5]]},
        {"bye": "perhaps"},
    ],
)
def test_invalid_orders_change_nothing(message: dict[str, object]) -> None:
    class Tree:
        nic_bytes_per_s = NIC

        def remove(self, connected: object) -> None:
            pytest.fail("it has changed")

    ours, theirs = socket.socketpair()
    with ours, theirs:
        config = AgentConfig("m0", "lo", NIC, {}, {}, "127.0.0.1", 1, "x", 1.0)
        tree = cast(Any, Tree())
        agent = Agent(config, Line(ours), tree, lambda: ([], []), cast(Any, None))
        with pytest.raises(EOFError):
            agent.apply(message)
