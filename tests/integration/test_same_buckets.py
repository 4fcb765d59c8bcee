"""A ring that is resumed sums as one that was not, to the last bit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.integration

SCRIPT = Path(__file__).with_name("bucket_script.py")
NUM_TRAINERS = 3


@pytest.mark.campaign
def test_a_resumed_ring_ends_with_the_same_parameters(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": str(NUM_TRAINERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path / "parameters.pt")],
            env={**os.environ, **place, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(NUM_TRAINERS)
    ]
    try:
        assert [process.wait(240) for process in running] == [0] * NUM_TRAINERS
    finally:
        for process in running:
            process.kill()
            process.wait()
    whole, resumed = torch.load(tmp_path / "parameters.pt", weights_only=True)
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name
