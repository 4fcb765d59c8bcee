"""Three flows between two namespaces, shaped by policies; see `benchmarks/traffic_shares.py`."""

from __future__ import annotations

import json
import os
import select
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.tasks import EdgeKind
from headrace.linux import htb
from headrace.policies.flow import FLOW_POLICIES, Flow
from headrace.runtime.traffic.class_shares import Port
from headrace.runtime.traffic.htb_tree import shaped
from headrace.runtime.traffic.policy_rates import Rates

NIC_BYTES_PER_S = 25e6
PORTS = (5101, 5102, 5103)
SENDER, RECEIVER = "10.79.0.1", "10.79.0.2"
TICK_S = 0.005
SETTLE_S = 0.7
WINDOW_S = 0.1
NEAR = 0.1


def flow(number: int, volume: float, iteration: int = 0) -> Flow:
    """A flow from machine 0 to machine 1."""
    kind = int(EdgeKind.GRAPH)
    return Flow(0, 1, number, number, kind, iteration, volume, volume, 0.0)


def rates_of(policy: str, flows: Sequence[Flow], pace_s: float = np.inf) -> dict[int, float]:
    """What a policy gives them on cards of equal speed."""
    nics = np.full(2, NIC_BYTES_PER_S)
    return Rates(FLOW_POLICIES[policy], nics, nics, pace_s).of(flows)


def equal() -> dict[int, float]:
    return rates_of("maxmin", [flow(i, 1e9) for i in range(3)])


def weighed() -> dict[int, float]:
    volumes = [NIC_BYTES_PER_S * share / 8 for share in (1, 2, 5)]
    return rates_of("paced", [flow(i, volume) for i, volume in enumerate(volumes)], pace_s=1.0)


def strict(top: int) -> dict[int, float]:
    return rates_of("priority", [flow(i, 1e9, iteration=(i - top) % 3) for i in range(3)])


# --- roles: each is this file, run inside a namespace ------------------------------------------


def sink() -> None:
    """Count what arrives on each port, every few milliseconds, until standard input closes."""
    listeners = [socket.create_server((RECEIVER, port)) for port in PORTS]
    print("ready", flush=True)
    socks = [listener.accept()[0] for listener in listeners]
    counts = [0] * len(socks)
    memory = bytearray(1 << 20)
    rows = []
    next_s = time.monotonic()
    while True:
        ready, _, _ = select.select([*socks, sys.stdin], [], [], TICK_S)
        if sys.stdin in ready:
            break
        for i, sock in enumerate(socks):
            if sock in ready:
                counts[i] += sock.recv_into(memory)
        now_s = time.monotonic()
        if now_s >= next_s:
            rows.append([now_s, *counts])
            next_s = now_s + TICK_S
    print(json.dumps(rows))


def source(congestion: str) -> None:
    """Send on three connections whatever goes."""
    data = bytes(1 << 16)

    def send(sock: socket.socket) -> None:
        with suppress(OSError):
            while True:
                sock.sendall(data)

    for port in PORTS:
        sock = socket.create_connection((RECEIVER, port), source_address=(SENDER, port + 1000))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        threading.Thread(target=send, args=(sock,), daemon=True).start()
    print("ready", flush=True)
    sys.stdin.read()


def control() -> None:
    """Own the sender's classes, and give flows the rates that come as lines of JSON."""
    with htb.open_route() as route:
        index = htb.number_of(route, "eth0")
        with shaped(route, index, NIC_BYTES_PER_S) as tree:
            known = Port(tree.nic_bytes_per_s)
            for number, port in enumerate(PORTS):
                tree.add(number, 1, (port + 1000, RECEIVER, port))
                known.paths[number] = NIC_BYTES_PER_S
            print("ready", flush=True)
            for line in sys.stdin:
                given = {int(number): rate for number, rate in json.loads(line).items()}
                begin_s, cpu_s = time.monotonic(), time.process_time()
                shares = known.change(given)
                tree.change(shares)
                took_s = time.process_time() - cpu_s
                done = {"at_s": begin_s, "cpu_s": took_s, "changes": len(shares)}
                print(json.dumps(done), flush=True)


# --- the measurement ---------------------------------------------------------------------------


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def two_machines() -> Iterator[tuple[str, str]]:
    """Two namespaces with a cable between them."""
    names = f"hrs.{os.getpid()}.a", f"hrs.{os.getpid()}.b"
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", names[1])
        for name, address in zip(names, (SENDER, RECEIVER), strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


class Role:
    """This file as a process in a namespace."""

    def __init__(self, namespace: str, *words: str) -> None:
        # First in line for a core: who waits for one sends nothing, and leaves its share to others.
        command = ["nice", "-n", "-20", "ip", "netns", "exec", namespace]
        command += [sys.executable, str(Path(__file__)), *words]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment
        )

    def notify(self, value: Any) -> Any:
        """Say something; the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()
        return json.loads(self.hear())

    def hear(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the measurement has ended")
        return line

    def end(self) -> str:
        said, _ = self.process.communicate(timeout=120)
        return str(said)


Plan = Sequence[tuple[str, Mapping[int, float], float]]
"""Name of a phase, rates in it, seconds."""


def measure(plan: Plan, congestion: str) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Give three flows rates, phase after phase; what was done when, and what arrived."""
    with two_machines() as (here, there), ExitStack() as stack:
        controlling = Role(here, "control")
        stack.callback(controlling.end)
        assert controlling.hear() == "ready\n"
        receiving = Role(there, "sink")
        assert receiving.hear() == "ready\n"
        sending = Role(here, "source", congestion)
        stack.callback(sending.end)
        assert sending.hear() == "ready\n"
        time.sleep(1.0)
        phases = []
        for name, rates, length_s in plan:
            done = controlling.notify(rates)
            time.sleep(length_s)
            phases.append({**done, "name": name, "rates": rates, "end_s": time.monotonic()})
        return phases, np.array(json.loads(receiving.end()))


def shares_in(rows: np.ndarray, begin_s: float, end_s: float) -> np.ndarray:
    """What part of all that arrived was each flow's."""
    times_s = rows[:, 0]
    counts = [np.interp([begin_s, end_s], times_s, rows[:, i]) for i in range(1, rows.shape[1])]
    moved = np.diff(counts, axis=1).ravel()
    return np.asarray(moved / max(moved.sum(), 1.0))


def reached_ms(rows: np.ndarray, phase: Mapping[str, Any]) -> float | None:
    """How long it took until every flow was near its share, of a window that begins then."""
    wanted = shares_in(rows, phase["end_s"] - 0.6, phase["end_s"])
    for at_s in np.arange(phase["at_s"], phase["end_s"] - WINDOW_S - 0.1, TICK_S):
        if np.abs(shares_in(rows, at_s, at_s + WINDOW_S) - wanted).max() < NEAR:
            return float((at_s - phase["at_s"]) * 1e3)
    return None


def figures(quick: bool, congestion: str) -> dict[str, Any]:
    """All figures, with flows of some kind of TCP."""
    length_s, num_flips = (4.0, 4) if quick else (8.0, 10)
    plan: list[tuple[str, Mapping[int, float], float]] = [
        ("1:1:1", equal(), length_s),
        ("1:2:5", weighed(), length_s),
        ("strict", strict(0), length_s),
    ]
    plan += [("flip", strict(1 + i % 2), 1.0) for i in range(num_flips)]
    phases, rows = measure(plan, congestion)
    by_name: dict[str, list[dict[str, Any]]] = {}
    for phase in phases:
        by_name.setdefault(phase["name"], []).append(phase)
    found: dict[str, Any] = {}
    errors = []
    for name, wanted in (("1:1:1", [1, 1, 1]), ("1:2:5", [1, 2, 5])):
        phase = by_name[name][0]
        got = shares_in(rows, phase["at_s"] + SETTLE_S, phase["end_s"])
        target = np.array(wanted) / sum(wanted)
        errors.append(float(np.abs(got / target - 1).max()))
        found[f"shares {name}"] = [round(float(each), 4) for each in got]
        found[f"error {name}"] = round(errors[-1], 4)
    found["largest_error"] = round(max(errors), 4)
    phase = by_name["strict"][0]
    got = shares_in(rows, phase["at_s"] + SETTLE_S, phase["end_s"])
    found["strict_top"] = round(float(got[0]), 4)
    found["strict_floors"] = [round(float(each), 4) for each in got[1:]]
    inside = rows[(rows[:, 0] > phases[0]["at_s"]) & (rows[:, 0] < phases[2]["end_s"])]
    moved = (inside[-1] - inside[0])[1:].sum() / (inside[-1, 0] - inside[0, 0])
    found["goodput"] = round(float(moved / NIC_BYTES_PER_S), 4)
    waits = [reached_ms(rows, phase) for phase in by_name["flip"]]
    known = [each for each in waits if each is not None]
    found["reached_ms_median"] = round(statistics.median(known), 1) if known else None
    found["reached_ms_worst"] = round(max(known), 1) if len(known) == len(waits) else None
    changes = sum(phase["changes"] for phase in phases)
    found["cpu_us_per_change"] = round(1e6 * sum(each["cpu_s"] for each in phases) / changes, 1)
    return found


if __name__ == "__main__":
    _roles: dict[str, Callable[..., None]] = {"sink": sink, "source": source, "control": control}
    _roles[sys.argv[1]](*sys.argv[2:])
