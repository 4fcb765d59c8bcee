"""Time from a run's start to its first batch: with stores of its own, and with running ones."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headrace.api.documents.load import save_plan
from headrace.api.graph import partition
from headrace.testbed import Testbed
from tests.support.cluster_bed import Layout, make_cluster, make_plan

Log = Callable[[str], None]

NUM_RUNS = 3
_LIMIT_S = 600.0

SCRIPT = """
import time
from pathlib import Path
import torch
from torch_geometric.nn import GraphSAGE

def train_func(ctx):
    model = GraphSAGE(128, 16, num_layers=2, out_channels=16)
    model, optimizer = ctx.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = ctx.loader("train", [10, 5], batch_size=512)
    path = Path(ctx.config["folder"])
    for epoch in ctx.epochs(1):
        for batch in loader:
            first = path / f"first-{ctx.rank}"
            if not first.exists():
                first.write_text(str(time.time()))
            model(batch.x, batch.edge_index).square().mean().backward()
            optimizer.step()
"""


def run_stores(is_quick: bool, log: Log) -> dict[str, Any]:
    """Medians of the time to the first batch, in seconds."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-stores-") as name:
        scratch = Path(name)
        (scratch / "train.py").write_text(SCRIPT)
        num_nodes = 20_000 if is_quick else 200_000
        source = f"generated:nodes={num_nodes},edges={10 * num_nodes},features=128"
        partition(source, scratch / "local", 2)
        found["local"] = _compare(
            [sys.executable, "-m", "headrace"], ["--local"], scratch / "local", scratch, log
        )
        if os.geteuid() == 0 and shutil.which("ip") is not None:
            partition(source, scratch / "parts", 4)
            found["testbed"] = _on_testbed(scratch, log)
    return found


def _on_testbed(scratch: Path, log: Log) -> dict[str, Any]:
    layout = Layout(trainers=("m0", "m1", "m2", "m3"), samplers=("m0", "m1", "m2", "m3"))
    save_plan(make_plan(layout, 512), scratch / "plan.json")
    bed = Testbed.up(make_cluster(), f"stores-{os.getpid()}")
    try:
        command = bed.command("m0", [sys.executable, "-m", "headrace"])
        where = ["--plan", str(scratch / "plan.json")]
        return _compare(command, where, scratch / "parts", scratch, log)
    finally:
        bed.down()


def _compare(
    headrace: Sequence[str], where: Sequence[str], graph: Path, scratch: Path, log: Log
) -> dict[str, Any]:
    """Runs with stores of their own, and with those of a store set."""
    environment = {**os.environ, "HEADRACE_RUNS": str(scratch / "runs")}
    plain = ["run", *where, "--graph", str(graph)]
    # The first run compiles kernels.
    _first_batch_s([*headrace, *plain], scratch, environment, log)
    plain_s = [
        _first_batch_s([*headrace, *plain], scratch, environment, log) for _ in range(NUM_RUNS)
    ]
    begun_s = time.monotonic()
    _check([*headrace, "stores", "up", *where, "--graph", str(graph)], scratch, environment)
    up_s = time.monotonic() - begun_s
    try:
        attached = ["run", *where, "--stores", graph.name]
        attached_s = [
            _first_batch_s([*headrace, *attached], scratch, environment, log)
            for _ in range(NUM_RUNS)
        ]
    finally:
        _check([*headrace, "stores", "down", "--force", graph.name], scratch, environment)
    row = {
        "plain_s": statistics.median(plain_s),
        "attached_s": statistics.median(attached_s),
        "up_s": up_s,
        "all_plain_s": plain_s,
        "all_attached_s": attached_s,
    }
    log(
        f"{where[0]}: first batch after {row['plain_s']:.2f} s with stores of its own, "
        f"{row['attached_s']:.2f} s with running ones; these took {up_s:.2f} s to start"
    )
    return row


def _first_batch_s(
    command: Sequence[str], scratch: Path, environment: Mapping[str, str], log: Log
) -> float:
    """Seconds from the start of a run to the first batch of its slowest trainer."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        begun_s = time.time()
        script = str(scratch / "train.py")
        _check([*command, "--set", f"folder={folder}", script], scratch, environment)
        times = [float(path.read_text()) for path in Path(folder).glob("first-*")]
    found = max(times) - begun_s
    log(f"  {'running stores' if '--stores' in command else 'own stores'}: {found:.2f} s")
    return found


def _check(command: Sequence[str], scratch: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, cwd=scratch, env=environment, capture_output=True, timeout=_LIMIT_S, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()[-2000:]}")


if __name__ == "__main__":
    import json

    print(json.dumps(run_stores("--quick" in sys.argv, print), indent=1))
