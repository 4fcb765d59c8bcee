"""Estimated against measured memory and time of training steps.

    python benchmarks/memory.py --json --output benchmarks/results/memory.json
    python benchmarks/memory.py --only allocator --output benchmarks/results/memory.json
    python benchmarks/memory.py --quick --json

The last line is one JSON object:

- `allocator`: peak of tensor memory, traced and measured by torch's profiler: GCN, SAGE, GAT, GIN
  and RGCN with 2 to 4 layers on five graphs, and PNA, GATv2, Transformer layers and a model over
  edges; ratios of estimated to measured peaks of at least 90 MB;
- `trace`: operations of a step and CPU seconds to trace it, of all these and of RGCN with 40
  relations;
- `shapes`: upper shape of 20 sampled batches over the largest of 300, by graph;
- `resident`: anonymous memory of real trainer processes of `headrace run --local`, polled, against
  `headrace estimate`; null if quick;
- `transfer`: errors of step times for batch sizes, fan-outs, widths, models and graphs that were
  left out of the fit; share of them inside the stated 90 % interval; error of a fit to ten steps;
- `packing`: random pairs of runs that the estimate admits; peaks of some under the tightest limit;
- `stores`: seconds from a run's start to its first batch, with stores of its own and with running
  ones, on this machine and on a testbed;
- `sweeps`: a sweep of 12 trials against its runs one after the other;
- `sweep_kills`: kills at random times of sweeps, trials and their stores, samplers and trainers;
- `orders`: makespan, mean completion and queueing time of a mix of jobs in the simulator.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import memory_models
from benchmarks.machine import describe_machine
from benchmarks.memory_models import GRAPHS, MORE_GRAPHS, Sampled, Setting
from benchmarks.memory_orders import run_orders
from benchmarks.memory_packing import run_packing
from benchmarks.memory_resident import run_resident
from benchmarks.memory_stores import run_stores
from benchmarks.memory_sweeps import run_sweep_kills, run_sweeps
from benchmarks.memory_transfer import measure, transfer
from headrace.profiling.step_estimate.batch_shape import NUM_BATCHES, shape_of, upper_shape
from headrace.profiling.step_estimate.measured_step import measured_peak
from headrace.profiling.step_estimate.tracer import trace_steps

EXACT_MODELS = ("GCN", "SAGE", "GAT", "GIN", "RGCN")
OTHER_MODELS = ("PNA", "GATv2", "Transformer", "edge")
LEAST_BYTES = 90_000_000
NUM_LARGEST = 300
MANY_FEATURES = 2000
MANY_RELATIONS = 40
QUICK_GRAPH = "pubmed"

Log = Callable[[str], None]


def run_allocator(is_quick: bool, log: Log) -> dict[str, Any]:
    """Peaks of all models and graphs."""
    torch.set_num_threads(1)
    rows = []
    for name in (QUICK_GRAPH,) if is_quick else GRAPHS:
        graph = Sampled(name)
        # Rows of some graphs have thousands of values.
        size = 64 if graph.num_features > MANY_FEATURES else 512
        for model in (*EXACT_MODELS, *OTHER_MODELS):
            for layers in (2,) if is_quick or model in OTHER_MODELS else (2, 3, 4):
                rows.append(_compare(graph, name, Setting(model, layers=layers, batch_size=size)))
        log(f"{name}: {len(rows)} models")
    return {
        "exact": _ratios([row for row in rows if row["model"] in EXACT_MODELS]),
        "others": _ratios([row for row in rows if row["model"] in OTHER_MODELS]),
        "rows": rows,
    }


def _compare(graph: Sampled, name: str, setting: Setting) -> dict[str, Any]:
    batch = next(graph.batches(setting))
    _, step = graph.step(setting)
    begin_s = time.process_time()
    traced = trace_steps(step, batch)
    trace_s = time.process_time() - begin_s

    def run() -> None:
        _, own_step = graph.step(setting)
        for _ in range(3):
            own_step(batch)

    held = [value for value in batch.to_dict().values() if isinstance(value, torch.Tensor)]
    measured = measured_peak(run, held)
    return {
        "graph": name,
        "model": setting.model,
        "layers": setting.layers,
        "estimated_bytes": traced.peak_bytes,
        "measured_bytes": measured,
        "ratio": traced.peak_bytes / measured,
        "made_of": dict(traced.made_of),
        "operations": traced.counts.operations,
        "trace_cpu_s": trace_s,
    }


def _ratios(rows: list[dict[str, Any]]) -> dict[str, Any]:
    large = [row["ratio"] for row in rows if row["measured_bytes"] >= LEAST_BYTES]
    every = [row["ratio"] for row in rows]
    return {
        "num": len(rows),
        "num_large": len(large),
        "least": min(large, default=None),
        "most": max(large, default=None),
        "least_of_all": min(every),
        "most_of_all": max(every),
    }


def run_trace(is_quick: bool, log: Log) -> dict[str, Any]:
    """CPU time of traces."""
    graph, rows = Sampled(QUICK_GRAPH), []
    for model, relations in (("SAGE", 8), ("GAT", 8), ("RGCN", 8), ("RGCN", MANY_RELATIONS)):
        memory_models.NUM_RELATIONS = relations
        setting = Setting(model, 64, 2 if is_quick else 4)
        batch = next(graph.batches(setting))
        _, step = graph.step(setting)
        begin_s = time.process_time()
        traced = trace_steps(step, batch)
        rows.append(
            {
                "model": model,
                "relations": relations,
                "operations": traced.counts.operations,
                "cpu_s": time.process_time() - begin_s,
            }
        )
        log(f"{model} with {relations} relations: {rows[-1]['cpu_s']:.2f} s")
    memory_models.NUM_RELATIONS = 8
    return {"rows": rows}


def run_shapes(is_quick: bool, log: Log) -> dict[str, Any]:
    """Upper shapes of few batches against the largest of many."""
    found = {}
    for name in (QUICK_GRAPH,) if is_quick else {**GRAPHS, **MORE_GRAPHS}:
        batches = Sampled(name).batches(Setting(batch_size=128))
        shapes = [shape_of(batch) for batch in islice(batches, 60 if is_quick else NUM_LARGEST)]
        upper = upper_shape(shapes[:NUM_BATCHES])
        found[name] = {
            what: upper[key] / max(shape[key] for shape in shapes)
            for what, key in (("nodes", None), ("edges", ()))
        }
        log(f"{name}: {found[name]}")
    ratios = [ratio for row in found.values() for ratio in row.values()]
    return {"least": min(ratios), "most": max(ratios), "graphs": found}


def run_transfer(is_quick: bool, log: Log) -> dict[str, Any]:
    """Step times of settings that were not measured."""
    graphs = (QUICK_GRAPH,) if is_quick else ("pubmed", "debian", "amazon_computers")
    cases = measure(graphs, is_quick, log)
    return {**transfer(cases), "cases": [case.row() for case in cases]}


PARTS: dict[str, Callable[[bool, Log], Any]] = {
    "allocator": run_allocator,
    "trace": run_trace,
    "shapes": run_shapes,
    "resident": run_resident,
    "transfer": run_transfer,
    "packing": run_packing,
    "stores": run_stores,
    "sweeps": run_sweeps,
    "sweep_kills": run_sweep_kills,
    "orders": run_orders,
}


def log(line: str) -> None:
    """Log a line with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    parser.add_argument("--quick", action="store_true", help="one graph, fewer models")
    parser.add_argument("--only", help=f"of {', '.join(PARTS)}, by commas")
    parser.add_argument("--output", type=Path, help="result file to write, or to add to")
    args = parser.parse_args()
    begin_s = time.monotonic()
    found: dict[str, Any] = dict.fromkeys(PARTS)
    if args.output is not None and args.output.exists():
        found = json.loads(args.output.read_text())
    for name in args.only.split(",") if args.only else PARTS:
        if args.quick and name in ("resident", "stores"):
            continue
        found[name] = PARTS[name](args.quick, log)
        found |= {
            "benchmark": "memory",
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": "python benchmarks/memory.py " + " ".join(sys.argv[1:]),
            "machine": describe_machine(),
            "is_quick": args.quick,
            "elapsed_s": round(time.monotonic() - begin_s, 1),
        }
        if args.output is not None:
            args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if args.json else json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
