"""Speed, approximations, memory and kills of full-graph training, for `full_graph.py`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.full_graph_trainers import (
    graph_of,
    in_trainers,
    learn,
    make,
    shared,
    step,
    width_of,
)
from benchmarks.memory_packing import resident
from benchmarks.traffic import EDGE
from headrace.api.estimate import estimate
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.training.full_graph.full_graph import FullGraph
from headrace.training.full_graph.part import halo_sizes
from headrace.training.full_graph.swap import FullGraphOptions

NUM_TIMED = 7
WAYS: dict[str, FullGraphOptions] = {
    "exact": {},
    "int8": {"rounding": "int8"},
    "int4": {"rounding": "int4"},
    "stale": {"is_stale": True},
    "bns": {},
}
KEPT = 0.1
"""Share of the halo rows that boundary sampling keeps."""

MEMORY_SCRIPT = Path(__file__).with_name("full_graph_memory.py")
CGROUP = Path("/sys/fs/cgroup/memory")
KILLED_SCRIPT = Path(__file__).parents[1] / "tests" / "integration" / "full_graph_killed_script.py"
NUM_KILLS, KILLED_EPOCHS = 10, 12


def log(line: str) -> None:
    """Log a line."""
    print(line, file=sys.stderr, flush=True)


def epoch_s(model: torch.nn.Module, name: str, batch: Any) -> float:
    """Median time of a step."""
    times = []
    for _ in range(NUM_TIMED):
        began_s = time.perf_counter()
        step(model, name, batch)
        times.append(time.perf_counter() - began_s)
    return statistics.median(times[2:])


def measure_speed(names: Sequence[str], models: Sequence[str], scratch: Path) -> dict[str, Any]:
    """Seconds per epoch of PyG, of a prepared model in one process, and of two trainers."""
    found: dict[str, Any] = {}
    for graph_name in names:
        graph = graph_of(graph_name, 2, scratch)
        data = FullGraph(graph)
        (whole,) = data
        found[graph_name] = {}
        for name in models:
            prepared = make(graph, name, 0)
            pyg_s = epoch_s(prepared, name, whole)
            data.wrap(prepared)
            one_s = epoch_s(prepared, name, whole)

            def work(part: FullGraph, graph: PartitionedGraph = graph, name: str = name) -> float:
                (batch,) = part
                return epoch_s(shared(make(graph, name, 0), part), name, batch)

            two_s = max(in_trainers(graph, 2, work))
            found[graph_name][name] = {
                "pyg_s": pyg_s,
                "one_s": one_s,
                "two_s": two_s,
                "one_times_faster": pyg_s / one_s,
                "two_times_faster": pyg_s / two_s,
            }
        log(f"speed {graph_name}: {json.dumps(found[graph_name])}")
    return {"threads": 1, "graphs": found}


def sampled(batch: Any, num_own: int, rng: torch.Generator) -> tuple[Any, Any]:
    """Edges with a tenth of the halo rows, and weights that make up for those left out."""
    source = batch.edge_index[0]
    far = source >= num_own
    num_halo = int(source.max()) + 1 - num_own if bool(far.any()) else 0
    kept = torch.rand(max(num_halo, 1), generator=rng) < KEPT
    stays = ~far
    stays[far] = kept[source[far] - num_own]
    weights = torch.where(far[stays], 1 / KEPT, 1.0)
    return batch.edge_index[:, stays], weights


def learn_sampled(model: torch.nn.Module, batch: Any, epochs: int, seed: int) -> np.ndarray:
    """Train with boundary sampling (BNS), and count right answers with all nodes."""
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for _ in range(epochs):
        model.train()
        model.zero_grad()
        edges, weights = sampled(batch, batch.num_nodes, rng)
        out = model(batch.x, edges, weights)
        mask = batch.train_mask
        cross_entropy(out[mask], batch.y[mask]).backward()
        optimizer.step()
    return learn(model, batch, 0, seed)


def measure_approximate(
    names: Sequence[str], num: int, seeds: int, epochs: int, scratch: Path
) -> dict[str, Any]:
    """Bytes, time and accuracy of ways that are not exact, by graph."""
    found: dict[str, Any] = {}
    for graph_name in names:
        graph = graph_of(graph_name, num, scratch)
        halo = int(halo_sizes(graph, list(range(num)))[EDGE].sum())
        rows: dict[str, Any] = {}
        for way, options in WAYS.items():

            def work(
                exact: FullGraph,
                graph: PartitionedGraph = graph,
                way: str = way,
                options: FullGraphOptions = options,
            ) -> list[Any]:
                data = FullGraph(graph, dist.group.WORLD, **options)
                (batch,) = data
                rank, counts = dist.get_rank(), []
                method = learn_sampled if way == "bns" else learn
                for seed in range(seeds):
                    model = shared(make(graph, "GCN", seed, 0.5), data)
                    sent, began_s = data.sent_bytes, time.perf_counter()
                    right = method(model, batch, epochs, 1000 * seed + rank)
                    seconds = (time.perf_counter() - began_s) / epochs
                    counts.append((*right, data.sent_bytes - sent, seconds))
                return counts

            results = np.array(in_trainers(graph, num, work), dtype=np.float64)
            right, all_nodes, sent, _ = results.sum(0).T
            widths = 64 + graph.num_classes
            # A tenth of the halo rows would travel; the benchmark does not pick them out.
            num_bytes = halo * KEPT * widths * 8 * epochs if way == "bns" else float(sent[-1])
            rows[way] = {
                "points": (100 * right / all_nodes).tolist(),
                "epoch_bytes": num_bytes / epochs,
                "epoch_s": None if way == "bns" else float(np.median(results[:, :, 3].max(0))),
            }
        exact = rows["exact"]
        for row in rows.values():
            gains = [a - b for a, b in zip(row["points"], exact["points"], strict=True)]
            row["gain"] = statistics.mean(gains)
            row["standard_error"] = (
                statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
            )
            row["bytes_over_exact"] = row["epoch_bytes"] / max(exact["epoch_bytes"], 1)
            row["points"] = statistics.mean(row["points"])
        found[graph_name] = rows
        log(f"approximate {graph_name}: {json.dumps(rows)}")
    return {"trainers": num, "model": "GCN", "epochs": epochs, "seeds": seeds, "graphs": found}


def measure_memory(scratch: Path) -> dict[str, Any] | None:
    """Peaks of attention with and without bins, and under a limit of half of the activations."""
    if not os.access(CGROUP, os.W_OK):
        return None
    graph = graph_of("amazon_computers", 1, scratch)
    base = _trained(graph, "base", 1, None)
    whole = _trained(graph, "whole", 1, None)
    binned = _trained(graph, "binned", 32, None)
    # Twice as much as this is needed without bins.
    limit = base["peak_bytes"] + (whole["peak_bytes"] - base["peak_bytes"]) // 2
    under = {
        name: _trained(graph, name, bins, limit) for name, bins in (("whole", 1), ("binned", 32))
    }
    found = {
        "model": f"GAT of {width_of(graph)} features, 2 layers, 4 heads of 32 values",
        "bins": 32,
        "base_bytes": base["peak_bytes"],
        "peak_bytes": whole["peak_bytes"],
        "binned_peak_bytes": binned["peak_bytes"],
        "limit_bytes": limit,
        "whole_is_killed": under["whole"]["loss"] is None,
        "binned_trains": under["binned"]["loss"] is not None,
        "loss_error": abs(binned["loss"] - whole["loss"]) / whole["loss"],
        "epoch_s": whole["epoch_s"],
        "binned_epoch_s": binned["epoch_s"],
        **_estimated(graph, "", 1, whole["peak_bytes"]),
        **_estimated(graph, "binned_", 32, binned["peak_bytes"]),
    }
    log(f"memory: {json.dumps(found)}")
    return found


def _estimated(graph: PartitionedGraph, name: str, bins: int, peak: int) -> dict[str, float]:
    """Peak that `headrace estimate` finds, also over the measured one."""
    (trainer,) = estimate(MEMORY_SCRIPT, graph.folder, [str(graph.folder), str(bins), "3"]).tasks
    num_bytes = trainer.anonymous_bytes
    return {
        f"{name}estimated_bytes": num_bytes,
        f"{name}estimated_over_measured": num_bytes / peak,
    }


def _trained(graph: PartitionedGraph, name: str, bins: int, limit: int | None) -> dict[str, Any]:
    """Train in a control group of memory."""
    group = CGROUP / f"headrace-full-graph-{os.getpid()}"
    group.mkdir()
    try:
        if limit is not None:
            (group / "memory.limit_in_bytes").write_text(str(limit))
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        epochs = 0 if name == "base" else 3
        # As a trainer of a run, with its allocator.
        trainer = [sys.executable, "-m", "headrace.runtime.trainer", str(os.getpid()), "here"]
        command = [*trainer, str(MEMORY_SCRIPT), str(graph.folder), str(bins), str(epochs)]
        done = subprocess.Popen(
            ["sh", "-c", enter, "sh", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        peak = 0
        while done.poll() is None:
            peak = max(peak, resident(group))
            time.sleep(0.01)
        assert done.stdout is not None
        out = done.stdout.read()
        found = json.loads(out.splitlines()[-1]) if done.returncode == 0 else {}
        return {"loss": None, "epoch_s": None, "peak_bytes": peak, **found}
    finally:
        for _ in range(100):
            with suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


def measure_kills(scratch: Path) -> dict[str, Any]:
    """Kill a trainer at a random place of each run; parameters are those of a run without."""
    graph = graph_of("pubmed", 2, scratch)
    rng, wrong = np.random.default_rng(0), []
    undisturbed = _killed_run(graph, scratch, "undisturbed", None)
    for number in range(NUM_KILLS):
        rank, epoch = int(rng.integers(2)), int(rng.integers(1, KILLED_EPOCHS))
        found = _killed_run(graph, scratch, f"killed-{number}", (rank, epoch))
        same = found is not None and all(
            torch.equal(value, found[name]) for name, value in (undisturbed or {}).items()
        )
        log(f"kill {number}: trainer {rank} in epoch {epoch}, same: {same}")
        if not same or undisturbed is None:
            wrong.append([number, rank, epoch])
    return {"num": NUM_KILLS, "num_same": NUM_KILLS - len(wrong), "wrong": wrong}


def _killed_run(
    graph: PartitionedGraph, scratch: Path, name: str, kill: tuple[int, int] | None
) -> dict[str, Any] | None:
    folder = scratch / name
    command = [sys.executable, "-m", "headrace", "run", "--local", str(KILLED_SCRIPT)]
    command += ["--trainers", "2", "--samplers", "0", "--stores", "0", "--checkpoint-every", "2"]
    command += ["--graph", str(graph.folder), "--runs", str(folder), "--json"]
    command += ["--set", f"epochs={KILLED_EPOCHS}"]
    if kill is not None:
        command += ["--set", f"mark={scratch / name}.mark"]
        command += ["--set", f"rank={kill[0]}", "--set", f"kill={kill[1]}"]
    with tempfile.TemporaryFile() as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, check=False)
        if done.returncode != 0:
            errors.seek(0)
            log(errors.read().decode()[-2000:])
            return None
    (path,) = (folder / "latest").glob("**/learnt.pt")
    found: dict[str, Any] = torch.load(path)
    return found
