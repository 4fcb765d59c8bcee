"""Measure the way of a batch: sampling, stores, samplers, caches, up to the trainer.

    python benchmarks/data_path.py --json
    python benchmarks/data_path.py --quick --json

The last line is one JSON object; every measurement takes turns with what it is compared with, and a
ratio is the median of several rounds:

- `end_to_end_ratio`: samples/s of a trainer fed by a sampler process, over a plain loop of one
  process: our kernel inside PyG's `NodeLoader`. GraphSAGE 2 x 64, fan-out [15, 10]; one torch
  thread in both. The trainer keeps its memory as in `headrace run`; `over_plain_reusing` in the
  details is over a plain loop that does so too, `ceiling` that of steps on batches in memory;
- `end_to_end_ratio_heavy`: the same with GraphSAGE 3 x 256, fan-out [15, 10, 5];
- `over_torch_sparse`: the first, over PyG's own `NeighborLoader`; needs `--sparse-python`;
- `kernel_ratio`: three hops on one core, over DGL's sampler; needs `--dgl-python`;
- `gather_ratio`, `gather_ratio_tls`: 10,000 x 128 rows from a store process, over a bare socket of
  a process that only does this; `gather_ratio_100`, `gather_ratio_100_tls`: 100 rows;
- `idle_share`: time in which the trainer of the heavy model had no batch;
- `memory_growth`: memory of trainer and samplers after 2,000 batches over after 200;
- `cache_hit_rate`, `remote_bytes_saved`: rows of other machines, kept in a tenth of their size.

What cannot be measured is null, and `skipped` says why. `--quick` has the same keys with fewer
rounds and smaller graphs; the heavy model gets smaller batches then.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import rivals
from benchmarks.apart import apart, staying
from benchmarks.gathering import gather
from benchmarks.machine import describe_machine
from benchmarks.training_speed import (
    FULL,
    QUICK,
    Effort,
    Model,
    Trainer,
    asking,
    configs,
    end_to_ends,
    forever,
    hand_over,
    over,
    together,
    train_seeds,
)
from tests.support.local_sampling import local_sampler
from tests.support.stores import running_stores

ROOT = Path(__file__).resolve().parents[1]
HEADLINES = (
    "end_to_end_ratio", "end_to_end_ratio_heavy", "over_torch_sparse", "kernel_ratio",
    "gather_ratio", "gather_ratio_tls", "gather_ratio_100", "gather_ratio_100_tls", "idle_share",
    "memory_growth", "cache_hit_rate", "remote_bytes_saved",
)  # fmt: skip


def kernel(folder: Path, scratch: Path, effort: Effort, dgl: str | None) -> dict[str, Any]:
    """Three hops on one core: our kernels beside DGL's, on the same seeds."""
    from headrace.graph.format.partitioned_graph import open_graph
    from headrace.graph.sampling.neighbor_sampler import BatchKey

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # the rival inherits it
    model = Model(0, (15, 10, 5), 1024, 0, 0, 0)
    sampler = local_sampler(open_graph(folder))
    source = rivals.batches(train_seeds(folder), model.batch_size)
    number = 0

    def work(num: int) -> dict[str, float]:
        nonlocal number
        edges = 0
        begin = time.perf_counter()
        for _ in range(num):
            number += 1
            edges += sum(
                sampler.sample(
                    next(source), model.fanouts, BatchKey(0, 0, number)
                ).num_sampled_edges
            )
        return {"seconds": time.perf_counter() - begin, "edges": edges}

    found: dict[str, list[dict[str, float]]] = {"ours": [], "dgl": []}
    with ExitStack() as stack:
        sides: dict[str, Callable[[int], dict[str, float]]] = {"ours": work}
        if dgl:
            hand_over(folder, scratch / "dgl", model, with_rows=False)
            command = [dgl, str(ROOT / "benchmarks" / "rivals.py"), "dgl", str(scratch / "dgl")]
            sides["dgl"] = stack.enter_context(asking(command))
        for side in sides.values():
            side(2)
        for _ in range(effort.kernel_rounds):
            for name, side in sides.items():
                found[name].append(side(effort.kernel_batches))
    os.sched_setaffinity(0, cores)
    num = effort.kernel_batches
    ms = {
        name: round(1000 * statistics.median(f["seconds"] for f in each) / num, 2)
        for name, each in found.items()
        if each
    }
    # DGL draws anew for nodes that earlier hops have drawn for, so its batches have more edges.
    edges = {name: round(each[-1]["edges"] / num) for name, each in found.items() if each}
    taken = {name: [f["seconds"] for f in each] for name, each in found.items()}
    per_edge = {name: [f["seconds"] / f["edges"] for f in each] for name, each in found.items()}
    return {
        "ratio": over(taken["dgl"], taken["ours"]),
        "ratio_per_edge": over(per_edge["dgl"], per_edge["ours"]),
        "ms_per_batch": ms,
        "edges_per_batch": edges,
        "fanouts": list(model.fanouts),
        "batch_size": model.batch_size,
    }


def memory(folder: Path, effort: Effort) -> dict[str, Any]:
    """Memory of a trainer and two samplers, early and late."""
    from headrace.linux.malloc import reuse_memory
    from tests.support.sampler_processes import start_prefetcher

    reuse_memory()
    model = Model(64, (15, 10), effort.memory_batch_size, 0, 0, 0)
    trainer, used = Trainer(model), []
    with start_prefetcher(
        *configs(folder, train_seeds(folder), model, 2), time.perf_counter
    ) as feed:
        fed = forever(feed)
        pids = [os.getpid(), *(process.pid for process in feed.processes)]
        trainer.train(fed, effort.early_batches)
        used.append([rss_bytes(pid) for pid in pids])
        trainer.train(fed, effort.late_batches - effort.early_batches)
        used.append([rss_bytes(pid) for pid in pids])
    return {
        "growth": round(sum(used[1]) / sum(used[0]), 4),
        "early_batches": effort.early_batches,
        "late_batches": effort.late_batches,
        "batch_size": model.batch_size,
        "mebibytes": [[round(each / 2**20, 1) for each in now] for now in used],
    }


def rss_bytes(pid: int) -> int:
    """Memory of a process that no file on disk backs."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    wanted = ("RssAnon:", "RssShmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(wanted))


def cache(folder: Path, scratch: Path, effort: Effort) -> dict[str, Any]:
    """A sampler with one part; all others are with stores, and a tenth of their rows is kept."""
    from headrace.graph.format.partitioned_graph import open_graph
    from tests.support.sampler_processes import start_prefetcher

    graph = open_graph(folder)
    part = graph.part(0)
    remote = graph.num_nodes_of("node") - part.num_nodes("node")
    budget = remote * 128 * 4 // 10
    seeds = np.array(part.original_ids("node")[part.split("node", "train")])
    model = Model(0, (15, 10), effort.cache_batch_size, 0, 0, 0)
    found: dict[str, Any] = {"budget_bytes": budget, "remote_bytes": remote * 128 * 4}
    with running_stores(folder, range(1, graph.num_parts), scratch / "cached") as stores:
        for policy in effort.cache_policies:
            kept = {"num_bytes": budget, "policy": policy, "home": 0}
            made = configs(folder, seeds, model, 1, cache=kept, **stores.settings())
            with start_prefetcher(*made, time.perf_counter) as feed:
                for epoch in range(effort.cache_epochs):
                    if epoch == 1:
                        feed.start_measuring()  # the first epoch fills the cache
                    for batch in feed:
                        del batch
                report = feed.report()
            saved, fetched = (report.figures[f"{n}_bytes"] for n in ("saved", "fetched"))
            found[policy] = {
                "hit_rate": round(report.cache_hit_rate, 4),
                "saved": round(saved / (saved + fetched), 4),
                "saved_mebibytes": round(saved / 2**20, 1),
                "fetched_mebibytes": round(fetched / 2**20, 1),
                "batches": report.num_batches,
            }
    return found


def prepare(source: str, folder: Path, num_parts: int, method: str, *rival: Any) -> None:
    """Write a graph; also for a rival, if there is one: see `hand_over`."""
    from headrace.api.graph import partition

    partition(source, folder, num_parts, method=method)
    if rival:
        hand_over(folder, *rival)


def importing() -> Callable[..., Any]:
    """A process that has what measurements need; it calls what it is given."""
    import torch_geometric.loader
    import torch_geometric.nn  # noqa: F401

    return lambda function, *arguments: function(*arguments)


def run(
    args: argparse.Namespace, scratch: Path, log: Callable[[str, Any], None], stack: ExitStack
) -> dict[str, Any]:
    """All measurements that are asked for."""
    effort = QUICK if args.quick else FULL
    only = set(args.only.split(",")) if args.only else set()
    found: dict[str, Any] = {}
    skipped: dict[str, str] = {}

    def measure(*calls: tuple[str, Callable[..., Any], tuple[Any, ...]]) -> None:
        """Several in one process, which saves its start."""
        wanted = [call for call in calls if not only or call[0] in only]
        if wanted:
            add(others(together, wanted))

    def add(answers: dict[str, Any]) -> None:
        found.update(answers)
        for name, value in answers.items():
            log(name, value)

    # All processes start at once, while nothing is measured.
    training, others = (stack.enter_context(staying(importing)) for _ in range(2))
    whole, parts = scratch / "whole", scratch / "parts"
    method = "fennel" if args.quick else "auto"
    with ThreadPoolExecutor() as pool:
        rival = (scratch / "sparse", effort.light, True) if args.sparse_python else ()
        made = [pool.submit(apart, prepare, effort.graph, whole, 1, "range", *rival)]
        if not only or "cache" in only:
            made.append(
                pool.submit(apart, prepare, effort.cache_graph, parts, effort.cache_parts, method)
            )
        for each in made:
            each.result()
    sparse = None
    if args.sparse_python:
        sparse = [args.sparse_python, str(ROOT / "benchmarks" / "rivals.py"), "torch-sparse"]
        sparse.append(str(scratch / "sparse"))
    else:
        skipped["over_torch_sparse"] = "no Python with torch-sparse was given: --sparse-python"
    if not args.dgl_python:
        skipped["kernel_ratio"] = "no Python with DGL was given: --dgl-python"
    models = {"light": effort.light, "heavy": effort.heavy}
    models = {name: model for name, model in models.items() if not only or name in only}
    if models:
        settings = (args.samplers, sparse if "light" in models else None)
        add(training(end_to_ends, whole, models, *settings))
    # Memory is measured before anything else has used any.
    measure(
        ("memory", memory, (whole, effort)),
        ("cache", cache, (parts, scratch, effort)),
        ("kernel", kernel, (whole, scratch, effort, args.dgl_python)),
        ("gather", gather, (whole, scratch, effort, False)),
        ("gather_tls", gather, (whole, scratch, effort, True)),
        ("gather_100", gather, (whole, scratch, effort, False, 100)),
        ("gather_100_tls", gather, (whole, scratch, effort, True, 100)),
    )
    return headlines(found) | {"skipped": skipped, "details": found}


def headlines(found: dict[str, Any]) -> dict[str, Any]:
    """The figures that have requirements."""
    places = (
        ("light", "ratio"), ("heavy", "ratio"), ("light", "over_torch_sparse"),
        ("kernel", "ratio"), ("gather", "ratio"), ("gather_tls", "ratio"),
        ("gather_100", "ratio"), ("gather_100_tls", "ratio"),
        ("heavy", "idle_share"), ("memory", "growth"),
    )  # fmt: skip
    kept = found.get("cache", {}).get("frequency", {})
    values = [found.get(name, {}).get(key) for name, key in places]
    return dict(zip(HEADLINES, [*values, kept.get("hit_rate"), kept.get("saved")], strict=True))


def command(args: argparse.Namespace) -> str:
    """How this was called, without the places of one machine."""
    said = ["python benchmarks/data_path.py"]
    for name, value in vars(args).items():
        if value is True or (value and value != 1):
            said.append(f"--{name.replace('_', '-')}")
            said += (
                [] if value is True else [str(value)] if name in ("only", "samplers") else ["..."]
            )
    return " ".join(said)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds of everything")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument(
        "--only",
        help="comma-separated, of light, heavy, kernel, gather, gather_tls, gather_100, "
        "gather_100_tls, memory, cache",
    )
    parser.add_argument("--samplers", type=int, default=1, help="sampler processes (1)")
    parser.add_argument("--dgl-python", help="a Python that has DGL 1.1.3")
    parser.add_argument("--sparse-python", help="a Python that has PyG and torch-sparse")
    parser.add_argument("--scratch", type=Path, help="folder for some 3 GB of files")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    began = time.perf_counter()

    def log(name: str, value: Any) -> None:
        if not args.json:
            print(f"{name}: {json.dumps(value)}", flush=True)

    # Processes that are started find the same headrace.
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), inherited]))
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch, ExitStack() as stack:
        document = run(args, Path(scratch), log, stack)
    document |= {
        "seconds": round(time.perf_counter() - began, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": command(args),
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
