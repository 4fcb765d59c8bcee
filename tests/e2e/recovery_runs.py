"""Runs that are disturbed, and what they say meanwhile."""

from __future__ import annotations

import subprocess
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import torch

from headrace.testbed import Testbed
from headrace.training.checkpoint_files import load, newest_whole
from tests.e2e.cluster_runs import Run
from tests.support.waiting import eventually

SCRIPT = """
import os
import time
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

def train_func(ctx):
    torch.manual_seed(0)
    model = GraphSAGE(5, hidden_channels=16, num_layers=2, out_channels=7)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer = ctx.prepare(model, optimizer)
    loader = ctx.loader("train", num_neighbors=[5, 3])
    for epoch in ctx.epochs(ctx.config["epochs"]):
        for batch in loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            is_slow = os.path.exists(ctx.config.get("slow", ""))
            time.sleep(1.0 if is_slow else ctx.config["pause_s"])
        ctx.report(epoch=epoch, loss=loss.item())
"""


class WatchedRun(Run):
    """A run whose words are noted with the time they came at."""

    def watch(self) -> None:
        """Begin to listen."""
        self.lines: list[tuple[float, str]] = []
        self._moved_s: list[float] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        threading.Thread(target=self._look, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def _look(self) -> None:
        iterations = 0
        while self.process.poll() is None:
            with suppress(OSError, ValueError, KeyError, StopIteration):
                now = self.status()["iterations"]
                if now != iterations:
                    iterations = now
                    self._moved_s.append(time.monotonic())
            time.sleep(0.2)

    def heard(self, words: str) -> bool:
        """Whether somebody has said this."""
        return any(words in line for _, line in self.lines)

    def wait_until(self, iterations: int) -> None:
        """Wait until so many are done."""
        assert eventually(
            lambda: self.process.poll() is not None or self.status()["iterations"] >= iterations,
            240,
        )
        assert self.process.poll() is None, self.said

    @property
    def said(self) -> str:
        """All that the run said."""
        return "\n".join(line for _, line in self.lines)

    def end_well(self) -> None:
        """Wait for its end."""
        self.process.wait(600)
        self._listener.join()
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        assert self.process.returncode == 0, self.said

    def longest_silence_s(self, since_s: float) -> float:
        """The longest time in which it neither said something nor did an iteration."""
        signs = sorted([*(at_s for at_s, _ in self.lines), *self._moved_s])
        times = [since_s, *(at_s for at_s in signs if at_s > since_s)]
        return max(b - a for a, b in pairwise(times))

    def parameters(self) -> dict[str, torch.Tensor]:
        """The model as the last checkpoint has it."""
        newest = newest_whole(self.folder / "checkpoints")
        assert newest is not None
        found: dict[str, torch.Tensor] = load(newest.path)[1]["model"]
        return found


def difference(one: WatchedRun, other: WatchedRun) -> float:
    """The largest difference of two parameters; 0 only if every bit is the same."""
    first, second = one.parameters(), other.parameters()
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def kill_raylet(bed: Testbed, machine: str) -> float:
    """Let a machine lose its Ray node; when."""
    words = bed.command(machine, ["ps", "-eo", "pid,comm"])
    listed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (pid,) = [int(line.split()[0]) for line in listed.splitlines() if line.split()[1] == "raylet"]
    subprocess.run(bed.command(machine, ["kill", "-KILL", str(pid)]), check=True)
    return time.monotonic()


def write_script(folder: Path) -> Path:
    """The script, in a folder of its own."""
    code = folder / "code"
    code.mkdir()
    path = code / "train.py"
    path.write_text(SCRIPT)
    return path
