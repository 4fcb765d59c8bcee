"""Stores as processes, for benchmarks that need some."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.graph.store.client import StoreClient
from headrace.rpc.config import TaskAddress
from headrace.rpc.credentials import Authority, Credentials, Secret

START_TIMEOUT_S = 60.0
HOST = "127.0.0.1"


@dataclass(frozen=True)
class RunningStore:
    """A store that serves."""

    part: int
    process: subprocess.Popen[bytes]
    address: TaskAddress

    def setting(self) -> dict[str, Any]:
        """What a sampler must know of it."""
        return {"part": self.part, **self.address.model_dump()}


@dataclass(frozen=True)
class RunningStores:
    """Stores of one run; `keys` is the file of credentials of whoever asks them."""

    stores: tuple[RunningStore, ...]
    keys: Path
    tls: bool

    def settings(self) -> dict[str, Any]:
        """What a sampler must know of all."""
        return {
            "stores": [store.setting() for store in self.stores],
            "credentials": self.keys,
            "tls": self.tls,
        }

    def connect(self, number: int = 0) -> StoreClient:
        return StoreClient.connect(self.stores[number].address, Credentials.load(self.keys))


@contextmanager
def running_stores(
    graph: Path,
    parts: Sequence[int],
    folder: Path,
    tls: bool = False,
    settings: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[RunningStores]:
    """Serve parts of a graph from processes of their own, until the end of the block."""
    folder.mkdir(parents=True)
    more = settings or {}
    token = Secret.random()
    authority = Authority()
    keys = folder / "client"
    Credentials(token, authority.issue("sampler 0") if tls else None).save(keys)
    with ExitStack() as stack:
        begun = [
            _start(graph, part, folder, token, authority, tls, stack, more, environment)
            for part in parts
        ]
        stores = [_wait(part, process, folder) for part, process in zip(parts, begun, strict=True)]
        yield RunningStores(tuple(stores), keys, tls)


def _start(
    graph: Path,
    part: int,
    folder: Path,
    token: Secret,
    authority: Authority,
    tls: bool,
    stack: ExitStack,
    settings: Mapping[str, Any],
    environment: Mapping[str, str] | None,
) -> subprocess.Popen[bytes]:
    Credentials(token, authority.issue(f"store {part}", [HOST])).save(folder / f"keys-{part}")
    config = {
        "graph": str(graph),
        "part": part,
        "credentials": str(folder / f"keys-{part}"),
        "ready": str(folder / f"ready-{part}"),
        "host": HOST,
        "tls": tls,
        **settings,
    }
    path = folder / f"config-{part}.json"
    path.write_text(json.dumps(config))
    log = stack.enter_context((folder / f"log-{part}").open("wb"))
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.graph.store", "--config", str(path)],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=None if environment is None else {**os.environ, **environment},
    )
    stack.callback(_stop, process)
    return process


def _wait(part: int, process: subprocess.Popen[bytes], folder: Path) -> RunningStore:
    ready = folder / f"ready-{part}"
    end = time.monotonic() + START_TIMEOUT_S
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"store {part}: {(folder / f'log-{part}').read_text()}")
        time.sleep(0.02)
    port = json.loads(ready.read_text())["port"]
    return RunningStore(
        part,
        process,
        TaskAddress(task=f"store {part}", machine=f"machine {part}", host=HOST, port=port),
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
