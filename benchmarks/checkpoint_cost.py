"""What checkpoints cost a run: time in which no trainer computed because of them.

Rank 0 measures how long every checkpoint holds it up (others wait for it), how long trainers ask
each other whether to stop, and how long its writing thread computes. All of that over the time of
the same steps is the cost; the thread's part is a bound, as a free core does it for nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headrace.api.graph import partition
from headrace.linux.malloc import reuse_memory
from headrace.runtime.protocol.run_context import RunContext
from headrace.runtime.protocol.trainer_messages import Inbox
from headrace.runtime.trainer.checkpointer import Checkpoints
from headrace.testbed import Testbed
from headrace.training.best_model import BestKeeper
from tests.support.cluster_bed import Layout, Run, events, make_cluster, make_plan

EVERY = 100
SKIP = 20
"""First steps, in which memory is touched for the first time and code is loaded."""

CONFIG = {"task": "epochs", "features": 64, "classes": 16, "width": 64, "fanouts": [10, 5]}
GRAPH = "generated:nodes=1e5,edges=2e6,features=64"
BATCH_SIZE = 192


def steps_of(folder: Path, task: str = "trainer0") -> list[tuple[float, float]]:
    """Beginning and end of every step of a trainer."""
    lines = (folder / f"trace-{task}.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [(record[3], record[4]) for record in records if record[:2] == ["exec", task]]


def cost_of(folder: Path) -> dict[str, float]:
    """What checkpoints have cost a run that is over, by its folder."""
    steps = steps_of(folder)
    elapsed_s = steps[-1][1] - steps[SKIP][0]
    made = [event for event in events(folder, "checkpoint") if event["iteration"] > SKIP]
    held_up_s = sum(event["stall_s"] + event["agree_s"] for event in made)
    writing_s = sum(event["write_cpu_s"] for event in made)
    return {
        "num_checkpoints": len(made),
        "checkpoint_bytes": max((event["bytes"] for event in made), default=0),
        "step_s": elapsed_s / (len(steps) - SKIP),
        "stall_s": max((event["stall_s"] for event in made), default=0.0),
        "held_up_share": held_up_s / elapsed_s,
        "cost_share": (held_up_s + writing_s) / elapsed_s,
    }


def measure_here(width: int, num: int = 6) -> dict[str, float]:
    """What a checkpoint of a model with Adam takes in this process, by its size alone."""
    reuse_memory()  # as every trainer does
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(3)])
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, width)).sum().backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as name:
        folder, inbox = Path(name), Inbox(Path(name) / "messages")
        try:
            run = RunContext(
                machine="here",
                messages=folder / "messages",
                output=folder / "output",
                checkpoint_every=1,
            )
            checkpoints = Checkpoints(run, torch.device("cpu"), BestKeeper(None))
            checkpoints.add(model, optimizer)
            for _ in checkpoints.epochs(num):
                checkpoints.took()
                # As in a training: the one before has been written long ago.
                checkpoints.close()
            told = list(inbox.receive(0))[1:]
        finally:
            inbox.close()
    found = {
        name: statistics.median(getattr(each, name) for each in told)
        for name in ("bytes", "stall_s", "write_s", "write_cpu_s")
    }
    return {"num_parameters": sum(p.numel() for p in model.parameters()), **found}


def measure(
    bed: Testbed, graph: Path, scratch: Path, num_steps: int, config: Mapping[str, Any] = CONFIG
) -> dict[str, Any]:
    """Train with checkpoints and without, on a testbed."""
    settings = {**config, "steps": num_steps}
    found = {}
    for every in (EVERY, 0):
        plan = make_plan(Layout(), BATCH_SIZE)
        options = ("--checkpoint-every", str(every))
        folder = Run(bed, plan, graph, scratch / str(every), settings, options).end()
        found[every] = cost_of(folder)
    return {**found[EVERY], "step_without_s": found[0]["step_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--width", type=int, default=CONFIG["width"])
    parser.add_argument("--here", action="store_true", help="only by size, without a testbed")
    wanted = parser.parse_args()
    if wanted.here:
        print(json.dumps([measure_here(width) for width in (64, 512, 2048)]))
        return
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        partition(GRAPH, scratch / "parts", 4)
        bed = Testbed.up(make_cluster(), "checkpoints")
        try:
            config = {**CONFIG, "width": wanted.width}
            print(json.dumps(measure(bed, scratch / "parts", scratch, wanted.steps, config)))
        finally:
            bed.down()


if __name__ == "__main__":
    main()
