"""Estimated against measured memory of real trainer processes, for `memory.py`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.memory_models import GRAPHS, MORE_GRAPHS
from headrace.api.estimate import estimate
from headrace.api.graph import partition
from headrace.core.job import Role
from headrace.linux.memory import memory_bytes

SCRIPT = Path(__file__).with_name("memory_script.py")
CASES = [
    (graph, model, width, size)
    for graph, size in (("amazon_photo", 512), ("amazon_computers", 512), ("generated", 1024))
    for model, width in (("SAGE", 128), ("GCN", 256), ("GAT", 128), ("GIN", 256), ("PNA", 64))
]
NUM_STEPS = 60
NUM_PARTS = 2
_POLL_S = 0.02


def run_resident(_: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Peaks of anonymous memory of trainers under `headrace run --local`."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="headrace-memory-") as scratch:
        for graph, model, width, size in CASES:
            parts = Path(scratch) / graph
            if not parts.exists():
                partition(str({**GRAPHS, **MORE_GRAPHS}[graph]), parts, NUM_PARTS)
            words = [model, str(width), str(size), str(NUM_STEPS)]
            found = estimate(SCRIPT, parts, words).of(Role.TRAINER)
            # Batches stay in shared memory, which is no anonymous memory.
            shared = sum(found.made_of[name] for name in ("batch", "batches in flight"))
            measured, measured_shared = _measured(parts, words, Path(scratch))
            anonymous = found.total_bytes - shared
            rows.append(
                {
                    "graph": graph,
                    "model": model,
                    "width": width,
                    "batch_size": size,
                    "estimated_bytes": anonymous,
                    "measured_bytes": measured,
                    "ratio": anonymous / measured,
                    "estimated_shared_bytes": shared,
                    "measured_shared_bytes": measured_shared,
                    "made_of": dict(found.made_of),
                }
            )
            log(f"{graph}, {model}: {rows[-1]['ratio']:.3f} of {measured / 1e6:.0f} MB")
    ratios = [row["ratio"] for row in rows]
    return {"least": min(ratios), "most": max(ratios), "rows": rows}


def _measured(parts: Path, words: list[str], folder: Path) -> tuple[int, int]:
    """Largest anonymous and shared memory of a trainer."""
    command = [sys.executable, "-m", "headrace", "run", "--local", "--graph", str(parts)]
    with subprocess.Popen(
        [*command, str(SCRIPT), "--", *words],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        peak = shared = 0
        while run.poll() is None:
            for pid in _children(run.pid):
                peak = max(peak, memory_bytes(pid=pid))
                shared = max(shared, memory_bytes("RssShmem", pid))
            time.sleep(_POLL_S)
    if run.returncode or not peak:
        raise RuntimeError(f"the run ended with {run.returncode}")
    return peak, shared


def _children(pid: int) -> list[int]:
    """Trainers that a process started."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [child for child in map(int, text.split()) if _is_trainer(child)]
    except OSError:
        return []


def _is_trainer(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"headrace.runtime.trainer" in words
