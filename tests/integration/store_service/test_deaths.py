"""Stores that die, are stuck, or were never there."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.store.client import StoreClient
from headrace.rpc.client import RpcChannel
from headrace.rpc.errors import StoreError
from tests.integration.store_service.store_process import StoreProcess, running
from tests.support.waiting import eventually

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("tls", [True, False], ids=["tls", "plain"])
def test_a_killed_store_is_named_in_time(folder: Path, tmp_path: Path, tls: bool) -> None:
    with running(tmp_path / "s", folder, 1, tls=tls) as store, store.connect() as client:
        start = open_graph(folder).part(1).start("node")
        ids = np.full(100_000, start)
        futures = [client.gather_soon("node", "x", ids) for _ in range(20)]
        futures[0].result(20)
        store.process.kill()
        with pytest.raises(StoreError, match="store 1 on m7 is gone"):
            _ask_for_ever(client, futures, ids)
        with pytest.raises(StoreError, match="store 1 on m7"):
            client.status()


def _ask_for_ever(client: StoreClient, futures: list[Any], ids: np.ndarray) -> None:
    for future in futures:
        future.result(15)
    while True:
        client.gather("node", "x", ids)


def connect(store: StoreProcess) -> StoreClient:
    """A client that is impatient only once it is connected."""
    return StoreClient(RpcChannel(store.address, store.client_credentials), 1.0)


def test_a_stuck_store_is_named_in_time(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "s", folder) as store, connect(store) as client:
        store.freeze()
        with pytest.raises(StoreError, match="store 0 on m7 did not answer status in 1 s"):
            client.status()
        # Also one that cannot be written to, and one that is not there yet.
        with pytest.raises(StoreError, match="store 0 on m7"):
            client.put("node", "x", np.zeros(10**7, np.int64), [np.zeros((10**7, 2))], 0).result()
        with pytest.raises(
            StoreError, match="store 0 on m7 did not accept the connection within 1 s"
        ):
            store.connect(timeout_s=1.0)


def test_a_large_request_to_a_stuck_store_does_not_hang(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "s", folder) as store, connect(store) as client:
        store.freeze()
        with pytest.raises(StoreError, match="did not answer put in 1 s"):
            client.put("node", "x", np.zeros(10**6, np.int64), [np.zeros((10**6, 6))], 0).result()


def test_a_store_that_is_not_there_is_named(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "s", folder) as store:
        pass
    with pytest.raises(StoreError, match="store 0 on m7 is gone"):
        store.connect()


def test_a_store_ends_with_its_input_and_with_sigterm(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "a", folder) as store, store.connect() as client:
        assert store.process.stdin is not None
        store.process.stdin.close()
        assert store.process.wait(60) == 0
        with pytest.raises(StoreError, match="store 0 on m7"):
            client.status()
    with running(tmp_path / "b", folder) as store, store.connect():
        store.process.terminate()
        assert store.process.wait(60) == 0


def test_a_store_ends_whichever_thread_hears_the_signal(folder: Path, tmp_path: Path) -> None:
    with running(tmp_path / "s", folder) as store, store.connect():
        pid = store.process.pid
        others = sorted({int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()} - {pid})
        # The main thread waits, and a signal that another thread hears does not interrupt it.
        hears = next(thread for thread in others if not _blocks(thread, signal.SIGTERM))
        assert ctypes.CDLL(None).tgkill(pid, hears, signal.SIGTERM) == 0
        assert store.process.wait(60) == 0


def _blocks(thread: int, number: int) -> bool:
    status = Path(f"/proc/{thread}/status").read_text()
    blocked = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
    return bool(int(blocked.split()[1], 16) >> (number - 1) & 1)


def test_a_store_ends_when_its_parent_is_killed(folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        "from tests.integration.store_service.store_process import StoreProcess\n"
        f"store = StoreProcess(Path({str(tmp_path / 's')!r}), Path({str(folder)!r}))\n"
        "print(store.process.pid, flush=True); time.sleep(600)\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
    assert eventually(lambda: not _is_alive(pid))


def _is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
