"""Runs that the estimate admits side by side, under a limit of their memory, for `memory.py`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.memory_models import GRAPHS, MORE_GRAPHS
from headrace.api.graph import partition
from headrace.api.trial_estimate import estimate_trial

SCRIPT = Path(__file__).with_name("memory_script.py")
NUM_PLANS, NUM_REAL, NUM_SETTINGS, NUM_STEPS = 1000, 30, 24, 40
MODELS = ("SAGE", "GCN", "GAT", "GIN")
ROOT = Path("/sys/fs/cgroup/memory")

Log = Callable[[str], None]
Words = tuple[str, list[str]]


def run_packing(is_quick: bool, log: Log) -> dict[str, Any] | None:
    """Random pairs of runs: how many are admitted, and the peaks of some that really run.

    Needs root and the memory controller of control groups; null without them, or if quick.
    """
    if is_quick or not os.access(ROOT, os.W_OK):
        return None
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="hr-") as folder:
        scratch = Path(folder)
        settings = [_draw(rng) for _ in range(NUM_SETTINGS)]
        sizes = []
        for graph, words in settings:
            if not (scratch / graph).exists():
                partition(str({**GRAPHS, **MORE_GRAPHS}[graph]), scratch / graph, 2)
            sizes.append(estimate_trial(SCRIPT, scratch / graph, words, {})[0])
            log(f"{graph} {' '.join(words)}: {sizes[-1] / 1e6:.0f} MB")
        admitted: list[tuple[int, int]] = []
        for _ in range(NUM_PLANS):
            one, two = rng.integers(NUM_SETTINGS, size=2).tolist()
            limit_bytes = rng.uniform(min(sizes), 2.2 * max(sizes))
            if sizes[one] + sizes[two] <= limit_bytes:
                admitted.append((one, two))
        rows = []
        for number in rng.permutation(len(admitted))[: NUM_REAL // 2].tolist():
            pair = admitted[number]
            # The tightest limit under which the pair is admitted.
            limit = int(sizes[pair[0]] + sizes[pair[1]])
            rows.append(_run_pair(scratch, [settings[each] for each in pair], limit))
            log(f"pair {len(rows)}: {rows[-1]}")
    return {
        "num_plans": NUM_PLANS,
        "num_admitted": len(admitted),
        "num_run": 2 * len(rows),
        "num_exceeded": sum(row["num_failed"] > 0 or row["num_oom"] > 0 for row in rows),
        "most_used": max(row["used"] for row in rows),
        "least_used": min(row["used"] for row in rows),
        "rows": rows,
    }


def _draw(rng: np.random.Generator) -> Words:
    graph = str(rng.choice(["amazon_photo", "amazon_computers", "generated", "pubmed"]))
    width, size = int(rng.choice([32, 64, 128, 256])), int(rng.choice([256, 512, 1024]))
    return graph, [str(rng.choice(MODELS)), str(width), str(size), str(NUM_STEPS)]


def _run_pair(scratch: Path, pair: Sequence[Words], limit_bytes: int) -> dict[str, Any]:
    """Run two scripts in a control group; its peak over the limit, and what failed."""
    group = ROOT / f"headrace-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
        runs = []
        for graph, words in pair:
            command = [sys.executable, "-m", "headrace", "run", "--local", "--samplers", "1"]
            command += ["--graph", graph, "--runs", "runs", str(SCRIPT), "--", *words]
            enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
            runs.append(
                subprocess.Popen(
                    ["sh", "-c", enter, "sh", *command],
                    cwd=scratch,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
        anonymous = 0
        while any(run.poll() is None for run in runs):
            anonymous = max(anonymous, resident(group))
            time.sleep(0.02)
        control = (group / "memory.oom_control").read_text().split()
        return {
            "limit_bytes": limit_bytes,
            "used": anonymous / limit_bytes,
            "num_failed": sum(run.returncode != 0 for run in runs),
            "num_oom": int(control[control.index("oom_kill") + 1]),
        }
    finally:
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def resident(group: Path) -> int:
    """Memory of a group that cannot be reclaimed: anonymous and shared."""
    found = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return int(found["rss"]) + int(found.get("shmem", 0))
