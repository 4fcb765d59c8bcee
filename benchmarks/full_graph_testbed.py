"""Full-graph training on four shaped machines, for `full_graph.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from headrace.api.documents.load import save_plan
from headrace.api.graph import partition
from headrace.api.plan import plan
from headrace.core.cluster import Cluster, Machine
from headrace.core.job import Job, Role
from headrace.testbed import Testbed, take_down

SCRIPT = Path(__file__).with_name("full_graph_script.py")
RATES_MBIT = (100, 100, 100, 100)
GRAPH = "generated:nodes=40000,edges=400000,features=256,classes=16,signal=0.5"
SETTINGS = {"model": "SAGE", "hidden": 256, "layers": 3, "epochs": 13}
HOWS = ("none", "sums", "groups")
"""Nothing overlaps; sums of own rows; and the rows that no other trainer needs."""

NUM_WARM, REPETITIONS = 3, 2


def log(line: str) -> None:
    """Log a line."""
    print(line, file=sys.stderr, flush=True)


def machines() -> Cluster:
    """Four, with a core each."""
    return Cluster(
        machines=tuple(
            Machine(name=f"m{i}", resources={"cpu": 4.0}, nic_in=rate * 125e3, nic_out=rate * 125e3)
            for i, rate in enumerate(RATES_MBIT)
        )
    )


def measure_testbed(scratch: Path) -> dict[str, Any]:
    """Seconds per epoch of each way, in turns."""
    num = len(RATES_MBIT)
    graph = partition(GRAPH, scratch / "testbed", num)
    job = Job(
        name="full-graph",
        trainers=num,
        batch_size=64,
        demands={role: {"cpu": 1} for role in (Role.TRAINER, Role.SAMPLER)},
    )
    path = scratch / "testbed-plan.json"
    save_plan(plan(machines(), job, method="colocate", policy="maxmin"), path)
    name = f"full-graph-{os.getpid()}"
    runs: dict[str, list[dict[str, Any]]] = {how: [] for how in HOWS}
    bed = Testbed.up(machines(), name, shaped=True)
    try:
        for repetition in range(REPETITIONS):
            for how in HOWS:
                found = _run(bed, graph.folder, path, scratch / f"{how}-{repetition}", how)
                runs[how].append(found)
                log(f"testbed {how}: {json.dumps(found)}")
    finally:
        take_down(name)
    epochs = {how: median(each["epoch_s"] for each in found) for how, found in runs.items()}
    return {
        "graph": GRAPH,
        "rates_mbit": RATES_MBIT,
        **SETTINGS,
        "epoch_s": epochs,
        "times_faster": {how: epochs["none"] / value for how, value in epochs.items()},
        "runs": runs,
        "losses_equal": len({run["loss"] for found in runs.values() for run in found}) == 1,
    }


def _run(bed: Testbed, graph: Path, made: Path, runs: Path, how: str) -> dict[str, Any]:
    runs.mkdir()
    words = [sys.executable, "-m", "headrace", "run", "--plan", str(made), "--graph", str(graph)]
    words += [
        "--runs",
        str(runs),
        "--checkpoint-every",
        "0",
        "--set",
        f"how={how}",
        "--set",
        f"to={runs}",
    ]
    words += [each for key, value in SETTINGS.items() for each in ("--set", f"{key}={value}")]
    done = subprocess.run(
        bed.command("m0", [*words, str(SCRIPT)]), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{how} ended with {done.returncode}: {done.stderr[-3000:]}")
    trainers = [json.loads(path.read_text()) for path in sorted(runs.glob("timed-*"))]
    times = trainers[0]["times"][NUM_WARM:]
    epoch_s = median(b - a for a, b in pairwise(times))
    steps = [each["sent"][-1] - each["sent"][-2] for each in trainers]
    waited = [median(each["waited_s"][NUM_WARM:]) for each in trainers]
    at_rate_s = max(num / (rate * 125e3) for num, rate in zip(steps, RATES_MBIT, strict=True))
    return {
        "epoch_s": epoch_s,
        "sent_bytes": steps,
        # What the fullest card needs at its rate, and what swaps took.
        "at_rate_s": at_rate_s,
        "swap_s": max(waited),
        "loss": trainers[0]["losses"][-1],
    }
