"""Crowds of silent connections from two emulated machines against each listener of a run.

    python benchmarks/crowds.py --json --output benchmarks/results/crowds.json
    python benchmarks/crowds.py --quick --json

Needs root and iproute2. A store, a sampler and a parameter server (all with TLS), the driver's
traffic controller and a bandwidth probe listen on a machine. Two others open 10,000 connections to
each of them, one listener after the other, say nothing, and replace connections that are closed
early. On a fourth machine a client of the run connects, asks and disconnects meanwhile, again and
again: `alone` and `beside` have the time of such a request without and with the crowd. Each limit
is compared with the seconds after which connections were really closed: of silent ones
(`handshake`), and of one that sends half a request and then a byte now and then (`request`).
`worst_limit_error` is the largest difference as a share of a limit. `--quick` opens 1,000.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.machine import describe_machine
from headrace.core.cluster import Cluster, Machine
from headrace.rpc.credentials import Authority, Credentials, Secret
from headrace.testbed import Testbed
from tests.support import crowd, crowd_listeners
from tests.support.crowd_listeners import RPC_KINDS
from tests.unit.graph import small_graphs

KINDS = (*RPC_KINDS, "traffic", "bandwidth")
MACHINES = ("listens", "crowd0", "crowd1", "asks")
MODULES = {
    "store": "headrace.graph.store",
    "sampler": "headrace.graph.sampler_worker",
    "parameter server": "headrace.training.parameter_server",
}
START_S = 120.0


class Bench:
    """Four machines, the listeners on the first and the client on the last."""

    def __init__(self, stack: ExitStack, folder: Path, handshake_s: float, request_s: float):
        machines = tuple(
            Machine(name=name, resources={"cpu": 1}, nic_in=1.25e9, nic_out=1.25e9)
            for name in MACHINES
        )
        self._stack, self._folder = stack, folder
        self._bed = Testbed.up(Cluster(machines=machines), f"crowds-{os.getpid()}", with_ray=False)
        stack.callback(self._bed.down)
        self._limits = {"handshake_s": handshake_s, "idle_s": request_s}
        self.host = str(self._bed.hosts[0].address)
        authority = Authority()
        token = Secret.random()
        Credentials(token, authority.issue("server", [self.host])).save(folder / "server")
        own = authority.issue("client")
        Credentials(token, own).save(folder / "client")
        (folder / "token").write_bytes(token.reveal())
        (folder / "client.pem").write_bytes(own.certificate + own.key.reveal())
        (folder / "authority.pem").write_bytes(own.authority)
        graph, module = folder / "graph", str(crowd_listeners.__name__)
        small_graphs.write(small_graphs.homogeneous(200, 2000), graph, num_parts=1)
        self.processes = {kind: self._serve(kind, graph) for kind in RPC_KINDS}
        self._driver = self.start(
            "listens", sys.executable, "-m", module, str(folder), self.host, str(handshake_s)
        )
        self._client = self.start("asks", sys.executable, "-m", module, str(folder))
        self.ports: dict[str, int] = dict(hear(self._driver))
        hear(self._client)
        end_s = time.monotonic() + START_S
        for kind in RPC_KINDS:
            ready = folder / f"{kind}.ready"
            while not ready.exists():
                if time.monotonic() > end_s or self.processes[kind].poll() is not None:
                    raise SystemExit(f"the {kind} did not start")
                time.sleep(0.05)
            self.ports[kind] = json.loads(ready.read_text())["port"]

    def start(self, machine: str, *command: str) -> subprocess.Popen[str]:
        """Start a process on a machine; its input and output are lines."""
        process = subprocess.Popen(
            self._bed.command(machine, list(command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def _serve(self, kind: str, graph: Path) -> subprocess.Popen[str]:
        ready = {"ready": str(self._folder / f"{kind}.ready")}
        place = {"host": self.host, "limits": self._limits}
        settings: dict[str, Any] = {"credentials": str(self._folder / "server"), "tls": True}
        if kind == "sampler":
            np.save(self._folder / "seeds.npy", np.arange(80))
            settings |= {
                "task": "sampler0.0", "graph": str(graph), "node_type": "node",
                "seeds": str(self._folder / "seeds.npy"), "seeds_per_iteration": 8,
                "batches_per_epoch": 10, "fanouts": [[["node", "to", "node"], [3]]],
                "listen": {**ready, **place},
            }  # fmt: skip
        elif kind == "store":
            settings |= {**ready, **place, "graph": str(graph), "part": 0}
        else:
            settings |= {**ready, **place, "num_trainers": 1}
        path = self._folder / f"{kind}.json"
        path.write_text(json.dumps(settings))
        return self.start("listens", sys.executable, "-m", MODULES[kind], "--config", str(path))

    def ask(self, kind: str, length_s: float) -> dict[str, Any]:
        """Ask a listener for some time."""
        heard = self._num_heard() if kind == "bandwidth" else 0
        found = tell(self._client, [kind, self.host, self.ports[kind], length_s])
        took_ms = np.array(found["took_s"] or [np.nan]) * 1e3
        num_answered = len(found["took_s"])
        if kind == "bandwidth":
            # A probe answers nothing: it knows whom it heard.
            num_answered = self._num_heard() - heard
        return {
            "requests": len(found["took_s"]) + len(found["failed"]),
            "answered": num_answered,
            "p50_ms": round(float(np.quantile(took_ms, 0.5)), 2),
            "p99_ms": round(float(np.quantile(took_ms, 0.99)), 2),
            "errors": sorted(set(found["failed"]))[:3],
        }

    def _num_heard(self) -> int:
        return int(tell(self._driver, ""))

    def crowd(self, kind: str, num: int, hold_s: float) -> list[subprocess.Popen[str]]:
        """Start a crowd on two machines, and wait until all connections have been opened."""
        words = [self.host, str(self.ports[kind]), str(num // 2), str(hold_s)]
        crowds = [
            self.start(machine, sys.executable, str(crowd.__file__), *words)
            for machine in MACHINES[1:3]
        ]
        for each in crowds:
            assert each.stdout is not None
            each.stdout.readline()
        return crowds

    def trickle(self, kind: str) -> subprocess.Popen[str]:
        """Start to send a request that does not become complete."""
        words = [self.host, str(self.ports[kind]), str(self._folder / "token"), str(self._folder)]
        return self.start("asks", sys.executable, str(crowd.__file__), *words)


def hear(process: subprocess.Popen[str]) -> Any:
    """The next line of a process."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"{process.args!r} has ended")
    return json.loads(line)


def tell(process: subprocess.Popen[str], message: Any) -> Any:
    """Send a line; returns the answer."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()
    return hear(process)


def limit_of(limit_s: float, lives_s: list[float]) -> dict[str, Any]:
    """How a limit was kept; connections that were closed for others do not count."""
    own = [each for each in lives_s if each > 0.8 * limit_s]
    worst = max((abs(each / limit_s - 1) for each in own), default=None)
    return {
        "limit_s": limit_s,
        "connections": len(own),
        "shortest_s": round(min(own, default=0.0), 3),
        "longest_s": round(max(own, default=0.0), 3),
        "error": None if worst is None else round(worst, 4),
    }


def gone(
    crowds: list[subprocess.Popen[str]],
    slow: subprocess.Popen[str] | None,
    handshake_s: float,
    request_s: float,
) -> dict[str, Any]:
    """What became of a crowd, after the last of its connections was closed."""
    found = [hear(each) for each in crowds]
    lives_s = [life for each in found for life in each["lives_s"]]
    handshake = limit_of(handshake_s, lives_s)
    result: dict[str, Any] = {
        key: sum(each[key] for each in found) for key in ("opened", "failed", "left")
    }
    result["evicted"] = len(lives_s) - handshake["connections"]
    result["limits"] = {"handshake": handshake}
    if slow is not None:
        result["limits"]["request"] = limit_of(request_s, [float(hear(slow))])
    return result


def measure(
    num: int, handshake_s: float, request_s: float, length_s: float, overlaps: bool
) -> dict[str, Any]:
    """Ask all listeners alone, then each beside a crowd.

    If it `overlaps`, the next crowd comes before the last connections of the former are closed.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-crowds-") as name, ExitStack() as stack:
        bench = Bench(stack, Path(name), handshake_s, request_s)
        for kind in KINDS:
            bench.ask(kind, 0.3)  # the first requests import and compile
        results: dict[str, dict[str, Any]] = {
            kind: {"alone": bench.ask(kind, length_s)} for kind in KINDS
        }
        waiting = {}
        for kind, result in results.items():
            slow = bench.trickle(kind) if kind in RPC_KINDS else None
            crowds = bench.crowd(kind, num, length_s)
            result["beside"] = bench.ask(kind, length_s)
            waiting[kind] = (crowds, slow)
            if not overlaps:
                result |= gone(*waiting.pop(kind), handshake_s, request_s)
        for kind, left in waiting.items():
            results[kind] |= gone(*left, handshake_s, request_s)
        for kind, result in results.items():
            result["after"] = bench.ask(kind, length_s / 2)
    return results


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="1,000 connections, shorter limits")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    began = time.perf_counter()
    settings = (1_000, 5.0, 6.0, 0.7) if args.quick else (10_000, 10.0, 20.0, 10.0)
    listeners = measure(*settings, overlaps=args.quick)
    errors = [
        limit["error"]
        for each in listeners.values()
        for limit in each["limits"].values()
        if limit["error"] is not None
    ]
    num_limits = sum(len(each["limits"]) for each in listeners.values())
    asked = [each[when] for each in listeners.values() for when in ("alone", "beside", "after")]
    document = {
        "listeners": listeners,
        "connections": settings[0],
        "limits_measured": len(errors),
        "worst_limit_error": max(errors, default=None),
        "unanswered": sum(each["requests"] - each["answered"] for each in asked),
        "worst_p99_ms": max(each["beside"]["p99_ms"] for each in listeners.values()),
        "seconds": round(time.perf_counter() - began, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/crowds.py " + " ".join(sys.argv[1:]),
        "is_quick": args.quick,
    }
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document) if args.json else json.dumps(document, indent=1))
    is_well = document["unanswered"] == 0 and len(errors) == num_limits and max(errors) <= 0.2
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
