"""Compare transports on the same messages: throughput, CPU, idle streams, and peers that misbehave.

    python benchmarks/transports.py --json --output benchmarks/results/transports.json
    python benchmarks/transports.py --quick --json

`transport_prototypes.py` says what each kind is. A client asks a server process for random rows of
512 bytes. All kinds take turns with a bare socket that does nothing else. The last line is one JSON
object:

- `ratios`: MB/s over those of the bare socket, by encryption, rows per answer and requests in
  flight; the median of several rounds. `megabytes_per_s` has the bare socket's figures;
- `cpu_s_per_gb`: CPU seconds of client and server per GB of rows;
- `idle`: streams of one client process that do nothing: share of a core, threads and KiB per stream
  on each side. Streams of `selector` and `epoll` send pings, as in a run;
- `killed_s`: seconds until all requests have failed after the server was killed;
- `slow_reader_mib`, `giant_mib`: memory a server takes for a client that asks for 320 MB and never
  reads, and for one that announces 4 GiB and sends 64 MiB (Flight: sends 200 MiB).

What a kind cannot do is null, and `skipped` says why.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import rivals
from benchmarks.apart import apart
from benchmarks.gathering import bare_socket
from benchmarks.machine import describe_machine
from benchmarks.transport_prototypes import (
    HOST,
    KINDS,
    NUM_NODES,
    WIDTH,
    Connector,
    allow_many_files,
    write_only,
)
from headrace.linux.malloc import keep_freed_memory
from headrace.rpc.connection import LENGTH
from headrace.rpc.credentials import Authority, Credentials, Secret
from headrace.rpc.framing import encode_request

ROOT = Path(__file__).resolve().parents[1]
ROW_BYTES = WIDTH * 4
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    rows: tuple[int, ...] = (100, 1000, 10_000)
    rounds: int = 7
    bytes_per_round: int = 100 << 20
    idle: tuple[int, ...] = (128, 512, 2000)
    idle_s: float = 10.0
    attack_s: float = 5.0


QUICK = Effort((10_000,), 1, 10 << 20, (32,), 0.5, 0.5)


@dataclass(frozen=True)
class Server:
    """A server process."""

    kind: str
    port: int
    folder: Path
    process: subprocess.Popen[str]

    @property
    def credentials(self) -> Credentials:
        return Credentials.load(self.folder / "client")

    def connector(self) -> Connector:
        return Connector(self.kind, self.port, self.credentials)


@contextmanager
def serving(kind: str, tls: bool) -> Iterator[Server]:
    """A server of a kind, as a process."""
    with tempfile.TemporaryDirectory() as name:
        folder, token = Path(name), Secret.random()
        authority = Authority()
        for side, hosts in (("server", [HOST]), ("client", [])):
            Credentials(token, authority.issue(side, hosts) if tls else None).save(folder / side)
        script = str(ROOT / "benchmarks" / "transport_prototypes.py")
        process = subprocess.Popen(
            [sys.executable, script, kind, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Server(kind, int(process.stdout.readline()), folder, process)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def cpu_s(pid: int) -> float:
    """CPU time of a process, with all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def throughput(kinds: tuple[str, ...], tls: bool, num_rows: int, effort: Effort) -> dict[str, Any]:
    """All kinds and a bare socket in turns, in a process of its own."""
    keep_freed_memory()
    rng = np.random.default_rng(0)
    num = max(effort.bytes_per_round // (num_rows * ROW_BYTES), 5)
    requests = [rng.integers(0, NUM_NODES, num_rows) for _ in range(min(num, 500))]
    requests = [requests[i % len(requests)] for i in range(num)]
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        np.zeros((NUM_NODES, WIDTH), np.float32).tofile(folder / "rows.bin")
        settings = {
            "file": str(folder / "rows.bin"),
            "shape": [NUM_NODES, WIDTH],
            "num_rows": num_rows,
            "tls": tls,
        }
        bare = stack.enter_context(bare_socket(folder / "socket", settings))
        with ThreadPoolExecutor() as pool:
            started = pool.map(lambda kind: stack.enter_context(serving(kind, tls)), kinds)
            servers = dict(zip(kinds, started, strict=True))
        channels = {kind: server.connector().connect() for kind, server in servers.items()}
        for in_flight in (1, 4):
            seconds: dict[str, list[float]] = {}
            work_s = dict.fromkeys(kinds, 0.0)
            for number in range(effort.rounds + 1):
                for kind in ("socket", *kinds):
                    pids = [os.getpid(), servers[kind].process.pid] if kind != "socket" else []
                    before_s = sum(map(cpu_s, pids))
                    begin_s = time.perf_counter()
                    if kind == "socket":
                        ask_socket(bare, requests, in_flight)
                    else:
                        ask_channel(channels[kind], requests, in_flight)
                    taken_s = time.perf_counter() - begin_s
                    if number:  # the first round warms up
                        seconds.setdefault(kind, []).append(taken_s)
                        if pids:
                            work_s[kind] += sum(map(cpu_s, pids)) - before_s
            gigabytes = num * num_rows * ROW_BYTES / 1e9
            pairs = {kind: zip(seconds["socket"], seconds[kind], strict=True) for kind in kinds}
            found[str(in_flight)] = {
                "megabytes_per_s": round(1000 * gigabytes / statistics.median(seconds["socket"])),
                "ratios": {
                    kind: round(statistics.median(a / b for a, b in pair), 3)
                    for kind, pair in pairs.items()
                },
                "cpu_s_per_gb": {
                    kind: round(work_s[kind] / effort.rounds / gigabytes, 2) for kind in kinds
                },
            }
        for channel in channels.values():
            channel.close()
    return found


def ask_channel(channel: Any, requests: list[np.ndarray], in_flight: int) -> None:
    waiting: deque[Any] = deque()
    for ids in requests:
        waiting.append(channel.ask({"op": "gather"}, [ids], TIMEOUT_S))
        if len(waiting) == in_flight:
            waiting.popleft().result()
    for future in waiting:
        future.result()


def ask_socket(end: Any, requests: list[np.ndarray], in_flight: int) -> None:
    num = 0
    for sent, ids in enumerate(requests, 1):
        end.sendall(ids.data.cast("B"))
        while num < sent and (sent - num == in_flight or sent == len(requests)):
            rivals.receive(end, np.empty((len(ids), WIDTH), np.float32))
            num += 1


def idle(kind: str, num: int, idle_s: float) -> dict[str, Any]:
    """Streams that do nothing, with TLS."""
    allow_many_files()
    with serving(kind, tls=True) as server:
        connector = server.connector()
        pids = {"client": os.getpid(), "server": server.process.pid}
        channels = [connector.connect()]
        before = {side: status(pid, "RssAnon") for side, pid in pids.items()}
        channels += [connector.connect() for _ in range(num - 1)]
        time.sleep(1.0)
        work_s = {side: cpu_s(pid) for side, pid in pids.items()}
        time.sleep(idle_s)
        return {
            side: {
                "core_share": round((cpu_s(pid) - work_s[side]) / idle_s, 4),
                "threads": status(pid, "Threads"),
                "kib_per_stream": round((status(pid, "RssAnon") - before[side]) / num, 1),
            }
            for side, pid in pids.items()
        }


def killed(kind: str) -> float:
    """Seconds until pending requests have failed."""
    with serving(kind, tls=True) as server:
        channel = server.connector().connect()
        ids = np.zeros(10_000, np.int64)
        futures = [channel.ask({"op": "gather"}, [ids], TIMEOUT_S) for _ in range(20)]
        futures[0].result()
        begin_s = time.perf_counter()
        server.process.send_signal(signal.SIGKILL)
        for future in futures:
            with suppress(Exception):
                future.result(TIMEOUT_S)
        return round(time.perf_counter() - begin_s, 3)


def slow_reader(kind: str, seconds: float) -> float:
    """MiB a server takes for a client that asks and never reads."""
    return _growth(kind, seconds, _ask_and_never_read)


def giant(kind: str, seconds: float) -> float:
    """MiB a server takes for a giant."""
    return _growth(kind, seconds, _send_giant)


def _growth(kind: str, seconds: float, attack: Callable[[Server], None]) -> float:
    with serving(kind, tls=False) as server:
        channel = server.connector().connect()
        channel.ask({"op": "gather"}, [np.zeros(10_000, np.int64)], TIMEOUT_S).result()
        before = status(server.process.pid, "RssAnon")
        threading.Thread(target=attack, args=(server,), daemon=True).start()
        most = max(_sampled(server.process.pid, seconds))
        return round((most - before) / 1024, 1)


def _ask_and_never_read(server: Server) -> None:
    requests = [
        encode_request(number, {"op": "gather"}, [np.zeros(10_000, np.int64)])
        for number in range(64)
    ]
    with suppress(Exception):
        if server.kind == "flight":
            writer = write_only(server.port)
            for request in requests:
                writer.write_metadata(request)
        else:
            token = server.credentials.token.reveal()
            with socket.create_connection((HOST, server.port)) as sock:
                sock.sendall(LENGTH.pack(len(token)) + token)
                for request in requests:
                    sock.sendall(LENGTH.pack(len(request)) + request)
                time.sleep(600)


def _send_giant(server: Server) -> None:
    if server.kind == "flight":
        channel = server.connector().connect()
        channel.ask({"op": "gather"}, [np.zeros(25 << 20, np.int64)], 60.0)
        return
    token = server.credentials.token.reveal()
    with suppress(OSError), socket.create_connection((HOST, server.port), 10) as sock:
        sock.sendall(LENGTH.pack(len(token)) + token + LENGTH.pack(2**32 - 1))
        for _ in range(64):
            sock.sendall(bytes(1 << 20))


def _sampled(pid: int, seconds: float) -> Iterator[int]:
    end_s = time.perf_counter() + seconds
    while time.perf_counter() < end_s:
        yield status(pid, "RssAnon")
        time.sleep(0.01)


def run(effort: Effort, kinds: tuple[str, ...], log: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"throughput": {}, "idle": {}}
    skipped: dict[str, str] = {}
    for protection in ("plain", "tls"):
        by_rows = found["throughput"].setdefault(protection, {})
        for num_rows in effort.rows:
            by_rows[str(num_rows)] = apart(throughput, kinds, protection == "tls", num_rows, effort)
            log(f"{protection}, {num_rows} rows", by_rows[str(num_rows)])
    for kind in kinds:
        for num in effort.idle:
            try:
                measured = apart(idle, kind, num, effort.idle_s)
            except Exception as error:
                measured, skipped[f"{kind}, {num} idle"] = None, str(error)[-200:]
            found["idle"].setdefault(kind, {})[str(num)] = measured
            log(f"{kind}, {num} idle streams", measured)
    found["killed_s"] = {kind: apart(killed, kind) for kind in kinds}
    log("killed_s", found["killed_s"])
    for name, function in (("slow_reader_mib", slow_reader), ("giant_mib", giant)):
        with ThreadPoolExecutor() as pool:
            taken = pool.map(lambda kind, do=function: apart(do, kind, effort.attack_s), kinds)
            found[name] = dict(zip(kinds, taken, strict=True))
        log(name, found[name])
    return found | {"skipped": skipped}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds, one number of streams")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--kinds", default=",".join(KINDS), help="comma-separated (all)")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    kinds = tuple(args.kinds.split(","))
    begin_s = time.perf_counter()

    def log(name: str, value: Any) -> None:
        if not args.json:
            print(f"{name}: {json.dumps(value)}", flush=True)

    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), inherited]))
    if importlib.util.find_spec("uvloop") is None:
        kinds = tuple(kind for kind in kinds if kind != "uvloop")
    document = run(QUICK if args.quick else Effort(), kinds, log)
    document |= {
        "seconds": round(time.perf_counter() - begin_s, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/transports.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
