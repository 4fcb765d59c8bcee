"""Rows from a store process, beside a bare socket that does the same: part of `data_path.py`."""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import rivals
from benchmarks.training_speed import Effort, over
from headrace.graph.format.partitioned_graph import open_graph
from headrace.linux.malloc import keep_freed_memory
from headrace.rpc.credentials import Authority
from tests.support.stores import running_stores

ROOT = Path(__file__).resolve().parents[1]


def gather(
    folder: Path, scratch: Path, effort: Effort, tls: bool, num_rows: int = 10_000
) -> dict[str, Any]:
    """Rows from a store process, and over a bare socket from a process that only does this."""
    keep_freed_memory()  # as processes do that ask stores all the time
    x = open_graph(folder).part(0).column("node", "x")
    rng = np.random.default_rng(0)
    # Small replies take little time: more of them, but not as many as for the same bytes.
    num_requests = effort.gather_requests * (1 if num_rows >= 10_000 else 20)
    requests = [rng.integers(0, len(x), num_rows) for _ in range(num_requests)]
    settings = {
        "file": str(folder / "part-0" / "node-0" / "x.bin"),
        "shape": x.shape,
        "num_rows": num_rows,
        "tls": tls,
    }
    x.sum()  # both read from memory
    taken: dict[str, list[float]] = {}
    with (
        running_stores(folder, [0], scratch / f"stores-{num_rows}-{tls}", tls) as stores,
        stores.connect() as client,
        bare_socket(scratch / f"socket-{num_rows}-{tls}", settings) as end,
    ):
        same = np.array_equal(client.gather("node", "x", requests[0]), x[requests[0]])
        for in_flight in (1, 4):
            sides = {
                f"service {in_flight}": partial(by_service, client, requests, in_flight),
                f"socket {in_flight}": partial(by_socket, end, requests, in_flight, x.shape[1]),
            }
            for side in sides.values():
                side()
            for _ in range(effort.gather_rounds):
                for name, side in sides.items():
                    taken.setdefault(name, []).append(side())
    megabytes = len(requests) * num_rows * x.shape[1] * 4 / 1e6
    return {
        "ratio": over(taken["socket 1"], taken["service 1"]),
        "ratio_4_in_flight": over(taken["socket 4"], taken["service 4"]),
        "megabytes_per_s": {
            name: round(megabytes / statistics.median(each)) for name, each in taken.items()
        },
        "same_rows": same,
        "num_rows": num_rows,
        "tls": tls,
    }


def by_service(client: Any, requests: list[np.ndarray], in_flight: int) -> float:
    waiting: deque[Any] = deque()
    begin = time.perf_counter()
    for ids in requests:
        waiting.append(client.gather_soon("node", "x", ids))
        if len(waiting) == in_flight:
            waiting.popleft().result()
    for future in waiting:
        future.result()
    return time.perf_counter() - begin


def by_socket(end: Any, requests: list[np.ndarray], in_flight: int, width: int) -> float:
    num = 0
    begin = time.perf_counter()
    for sent, ids in enumerate(requests, 1):
        end.sendall(ids.data.cast("B"))
        while num < sent and (sent - num == in_flight or sent == len(requests)):
            # An array of its own, as the service gives one.
            rivals.receive(end, np.empty((len(ids), width), np.float32))
            num += 1
    return time.perf_counter() - begin


@contextmanager
def bare_socket(folder: Path, settings: dict[str, Any]) -> Iterator[Any]:
    """A connection to a process that does nothing but answer on a socket."""
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(settings))
    if settings["tls"]:
        authority = Authority()
        for side, hosts in (("server", ["127.0.0.1"]), ("client", [])):
            identity = authority.issue(side, hosts)
            (folder / f"{side}.pem").write_bytes(identity.certificate)
            (folder / f"{side}-key.pem").write_bytes(identity.key.reveal())
            (folder / "authority.pem").write_bytes(identity.authority)
    command = [sys.executable, str(ROOT / "benchmarks" / "rivals.py"), "socket", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with rivals.wrapped(plain, folder, settings, server_side=False) as end:
            yield end
