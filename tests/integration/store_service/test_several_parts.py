"""A store's process serves several parts, and comes back on the ports that clients know."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.store.client import StoreClient
from headrace.rpc.config import TaskAddress
from tests.integration.store_service.store_process import StoreProcess

pytestmark = pytest.mark.integration


def test_every_part_has_a_port(folder: Path, tmp_path: Path) -> None:
    graph = open_graph(folder)
    parts = dict.fromkeys(range(graph.num_parts), 0)
    store = StoreProcess(tmp_path / "first", folder, part=None, parts=parts)
    ports = json.loads((store.folder / "ready").read_text())["ports"]
    assert sorted(map(int, ports)) == sorted(parts)
    for part, port in ports.items():
        address = TaskAddress(task="store", machine="m7", host="127.0.0.1", port=port)
        client = StoreClient.connect(address, store.client_credentials, 30.0)
        own = graph.part(int(part))
        got = client.gather("node", "x", own.start("node") + np.arange(2))
        np.testing.assert_array_equal(got, own.column("node", "x")[:2])
        client.close()
    store.process.kill()
    store.process.wait()
    # At once, though the kernel remembers connections of the one before.
    again = StoreProcess(tmp_path / "second", folder, part=None, parts=ports)
    assert json.loads((again.folder / "ready").read_text())["ports"] == ports
    again.stop()
    store.stop()


def test_a_store_without_parts_waits_for_its_end(folder: Path, tmp_path: Path) -> None:
    store = StoreProcess(tmp_path / "none", folder, part=None)
    assert json.loads((store.folder / "ready").read_text())["ports"] == {}
    store.stop()
    assert store.process.returncode == 0
