"""Two trainers of a ring whose gradients have 8 bits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("quantised_script.py")
NUM_TRAINERS = 2
HANG_S = 240


def test_parameters_stay_equal_and_the_loss_is_that_of_exact_gradients(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": str(NUM_TRAINERS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path / "found")],
            env={**os.environ, **place, "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(NUM_TRAINERS)
    ]
    try:
        assert [process.wait(HANG_S) for process in running] == [0] * NUM_TRAINERS
    finally:
        for process in running:
            process.kill()
            process.wait()
    found = [torch.load(tmp_path / f"found-{rank}") for rank in range(NUM_TRAINERS)]
    for _, (parameters, _) in found[1:]:
        for own, first in zip(parameters, found[0][1][0], strict=True):
            assert torch.equal(own, first)
    (exact, exact_loss), (quantised, quantised_loss) = found[0]
    assert not all(map(torch.equal, exact, quantised))
    assert quantised_loss == pytest.approx(exact_loss, rel=0.05)
    assert quantised_loss < 1
