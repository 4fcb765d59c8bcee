"""Orders of trials in the simulator, on a mix of jobs like CoGNN's, for `memory.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.memory_models import Sampled, Setting
from headrace.costs.step_time import TYPICAL
from headrace.policies.trials import TRIAL_ORDERS, Room, TrialLoad
from headrace.profiling.step_estimate.tracer import trace_steps
from headrace.simulator.trial_queue import simulate_queue

NUM_JOBS, NUM_EPOCHS, NUM_WORKERS = 20, 200, 2
MODELS, LAYERS, WIDTH = ("GCN", "SAGE", "GAT", "GIN"), range(4, 11), 64
GRAPHS = ("pubmed", "coauthor_cs", "debian", "amazon_computers", "amazon_photo", "cora")
MEMORY_FACTOR = 1.25
"""Memory over that of the largest job."""

SHARED_SPEED = 1.5
"""Work of two jobs side by side over that of one; CoGNN gains 1.1 to 1.5 by sharing (Table V)."""

NUM_QUEUES = 10


def run_orders(is_quick: bool, log: Callable[[str], None]) -> dict[str, Any]:
    """Makespan, mean completion and mean queueing time of every order, in seconds."""
    rng = np.random.default_rng(0)
    jobs: list[tuple[float, float]] = []
    graphs: dict[str, Sampled] = {}
    num_jobs = 6 if is_quick else NUM_JOBS
    for _ in range(num_jobs):
        name = str(rng.choice(GRAPHS[:1] if is_quick else GRAPHS))
        model, layers = str(rng.choice(MODELS)), int(rng.choice(LAYERS))
        graph = graphs.setdefault(name, Sampled(name))
        # Whole graphs, as in CoGNN: one step per epoch.
        batch = graph.data.clone()
        batch.batch_size = batch.num_nodes
        _, step = graph.step(Setting(model, WIDTH, layers, heads=1))
        traced = trace_steps(step, batch)
        jobs.append((float(traced.peak_bytes), NUM_EPOCHS * TYPICAL.seconds(traced.counts)))
        log(f"{model} with {layers} layers on {name}: {traced.peak_bytes / 1e6:.0f} MB")
    room = Room(NUM_WORKERS, MEMORY_FACTOR * max(memory for memory, _ in jobs))
    found: dict[str, Any] = {}
    for name, order in TRIAL_ORDERS.items():
        outcomes = []
        for queue in range(NUM_QUEUES):
            arrival = np.random.default_rng(queue).permutation(num_jobs)
            trials = [TrialLoad(n, *jobs[at]) for n, at in enumerate(arrival.tolist())]
            outcomes.append(simulate_queue(trials, order, room, num_cores=SHARED_SPEED))
        found[name] = {
            "makespan_s": mean(outcome.makespan_s for outcome in outcomes),
            "mean_completion_s": mean(outcome.mean_completion_s for outcome in outcomes),
            "mean_queueing_s": mean(outcome.mean_queueing_s for outcome in outcomes),
        }
    return {"num_jobs": num_jobs, "jobs": jobs, "orders": found}
