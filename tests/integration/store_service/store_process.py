"""All that listens, as processes of their own, and people who talk to them in the wrong way."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.graph.store.client import StoreClient
from headrace.rpc.client import RpcChannel
from headrace.rpc.config import TaskAddress
from headrace.rpc.connection import ACCEPTED, LENGTH
from headrace.rpc.credentials import Authority, Credentials, Identity, Secret
from headrace.rpc.framing import Message, decode_frame
from tests.support.waiting import eventually

MEBIBYTE = 1 << 20
NUM_SEEDS = 800

every_endpoint = pytest.mark.parametrize(
    "serving",
    [
        ("store", "tls"),
        ("sampler", "plain"),
        ("ps", "tls"),
        # The code behind these is the same.
        pytest.param(("store", "plain"), marks=pytest.mark.campaign),
        pytest.param(("sampler", "tls"), marks=pytest.mark.campaign),
        pytest.param(("ps", "plain"), marks=pytest.mark.campaign),
    ],
    ids="-".join,
    indirect=True,
)


class ServingProcess:
    """A process that listens, and the run it belongs to.

    Args:
        folder: Of its files.
        name: Of the task.
        module: What is run.
        settings: Of the process; where its credentials lie is added.
        tls: Whether it listens with TLS.
        max_files: Most file descriptors that it may have; those of this process by default.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        module: str,
        settings: dict[str, Any],
        tls: bool,
        max_files: int | None = None,
    ) -> None:
        self.folder = folder
        self.tls = tls
        self.token = Secret.random()
        self.authority = Authority()
        self._log = (folder / "log").open("wb")
        hosts = ["127.0.0.1", "localhost"]
        Credentials(self.token, self.authority.issue(name, hosts)).save(folder / "keys")
        settings = {"credentials": str(folder / "keys"), "tls": tls, **settings}
        (folder / "config.json").write_text(json.dumps(settings))
        limit = [] if max_files is None else ["prlimit", f"--nofile={max_files}"]
        self.process = subprocess.Popen(
            [*limit, sys.executable, "-m", module, "--config", str(folder / "config.json")],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
        )
        ready = folder / "ready"
        eventually(lambda: ready.exists() or self.process.poll() is not None)
        assert ready.exists(), self.log
        self.port = json.loads(ready.read_text())["port"]
        self._name = name

    @property
    def address(self) -> TaskAddress:
        return TaskAddress(task=self._name, machine="m7", host="127.0.0.1", port=self.port)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    @property
    def client_credentials(self) -> Credentials:
        identity = self.authority.issue("sampler 0") if self.tls else None
        return Credentials(self.token, identity)

    @property
    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @property
    def memory_bytes(self) -> int:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))

    def await_rest(self) -> None:
        """A sampler prepares, and may have to compile, after it has said that it is ready."""

        def rests() -> bool:
            before_s = self._work_s
            time.sleep(1)
            return self._work_s - before_s < 0.1

        assert eventually(rests)

    @property
    def _work_s(self) -> float:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")

    def ping(self) -> None:
        """See that it still lets a client in, and answers."""
        channel = RpcChannel(self.address, self.client_credentials)
        channel.ask({"op": "ping"}, (), 60.0).result()
        channel.close()

    def connect_socket(self, tls: bool | None = None, own: Identity | None = None) -> socket.socket:
        """A connection without a token; with TLS, a certificate of the run unless given."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        if self.tls if tls is None else tls:
            own = own or self.authority.issue("sampler 0")
            return own.client_context.wrap_socket(sock, server_hostname="127.0.0.1")
        return sock

    def freeze(self) -> None:
        """Stop all threads, and wait until they are: a signal takes effect a little later."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")

        def is_stopped() -> bool:
            stats = [(task / "stat").read_text() for task in tasks.iterdir()]
            return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)

        assert eventually(is_stopped)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        elif self.process.stdin is not None:
            self.process.stdin.close()
        self._log.close()


class StoreProcess(ServingProcess):
    """A graph store."""

    def __init__(
        self,
        folder: Path,
        graph: Path,
        part: int | None = 0,
        tls: bool = True,
        max_files: int | None = None,
        **config: Any,
    ) -> None:
        folder.mkdir(parents=True)
        settings = {
            "graph": str(graph),
            "part": part,
            "ready": str(folder / "ready"),
            "embedding_folder": str(folder / "embeddings"),
            **config,
        }
        super().__init__(folder, f"store {part}", "headrace.graph.store", settings, tls, max_files)

    def connect(self, timeout_s: float = 10.0) -> StoreClient:
        return StoreClient.connect(self.address, self.client_credentials, timeout_s)


class SamplerProcess(ServingProcess):
    """A sampler that waits for a trainer on another machine."""

    def __init__(self, folder: Path, graph: Path, tls: bool, limits: dict[str, Any]) -> None:
        folder.mkdir(parents=True)
        np.save(folder / "seeds.npy", np.arange(NUM_SEEDS))
        settings = {
            "task": "sampler 3",
            "machine": "m7",
            "graph": str(graph),
            "node_type": "node",
            "seeds": str(folder / "seeds.npy"),
            "seeds_per_iteration": 8,
            "batches_per_epoch": NUM_SEEDS // 8,
            "fanouts": [[["node", "to", "node"], [3, 2]]],
            "listen": {"ready": str(folder / "ready"), "limits": limits},
        }
        super().__init__(folder, "sampler 3", "headrace.graph.sampler_worker", settings, tls)


class ServerProcess(ServingProcess):
    """A parameter server for two trainers."""

    def __init__(self, folder: Path, tls: bool, limits: dict[str, Any]) -> None:
        folder.mkdir(parents=True)
        settings = {
            "task": "ps0",
            "num_trainers": 2,
            "ready": str(folder / "ready"),
            "trace": str(folder / "trace"),
            "limits": limits,
        }
        super().__init__(folder, "ps0", "headrace.training.parameter_server", settings, tls)


@contextmanager
def running(folder: Path, graph: Path, part: int = 0, **config: Any) -> Iterator[StoreProcess]:
    """A store that is stopped at the end."""
    store = StoreProcess(folder, graph, part, **config)
    try:
        yield store
    finally:
        store.stop()


class RawStream:
    """A connection of someone who may have the token, and has bad manners."""

    def __init__(self, store: ServingProcess, token: bytes | None = None) -> None:
        self.socket = store.connect_socket()
        self.send(store.token.reveal() if token is None else token)
        self.verdict = b""
        with suppress(EOFError, ConnectionError):
            self.verdict = bytes(self._read(len(ACCEPTED)))
            if self.verdict == ACCEPTED:
                self._read(LENGTH.size)

    def send(self, data: bytes) -> bool:
        """Send a message; whether the other side still listens."""
        return self.send_bytes(LENGTH.pack(len(data)) + data)

    def send_bytes(self, data: bytes) -> bool:
        with suppress(ConnectionError, ssl.SSLError):
            self.socket.sendall(data)
            return True
        return False

    def receive(self) -> Message:
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        reply = decode_frame(memoryview(self._read(length)))
        for array in reply.arrays:
            self._fill(array.reshape(-1).view(np.uint8).data)
        return reply

    def is_cut(self) -> bool:
        """Wait until the other side ends the connection."""
        return is_cut(self.socket)

    def close(self) -> None:
        self.socket.close()

    def _read(self, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        self._fill(memoryview(data))
        return data

    def _fill(self, memory: memoryview) -> None:
        while memory:
            num = self.socket.recv_into(memory)
            if num == 0:
                raise EOFError
            memory = memory[num:]


def is_cut(sock: socket.socket) -> bool:
    """Wait until the other side ends a connection."""
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except (ConnectionError, ssl.SSLError):
        pass
    return True


class Peak:
    """The most memory a process had during a block."""

    def __init__(self, store: ServingProcess) -> None:
        self._store = store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.bytes = 0

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.bytes = max(self.bytes, self._store.memory_bytes)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
