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
- `gather_ratio`, `gather_ratio_tls`: 10,000 x 128 rows from a store process, over a bare socket;
- `idle_share`: time in which the trainer of the heavy model had no batch;
- `memory_growth`: memory of trainer and samplers after 2,000 batches over after 200;
- `cache_hit_rate`, `remote_bytes_saved`: rows of other machines, kept in a tenth of their size.

What cannot be measured is null, and `skipped` says why. `--quick` has the same keys with fewer
rounds; the heavy model gets smaller batches then, and the cache a smaller graph.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import rivals
from benchmarks.apart import apart
from benchmarks.machine import describe_machine
from benchmarks.stores import running_stores
from benchmarks.training_speed import (
    FULL,
    GRAPH,
    NUM_PARTS,
    QUICK,
    Effort,
    Model,
    Trainer,
    asking,
    configs,
    end_to_end,
    forever,
    hand_over,
    over,
    together,
    train_seeds,
)

ROOT = Path(__file__).resolve().parents[1]
NUM_ROWS = 10_000
HEADLINES = (
    "end_to_end_ratio", "end_to_end_ratio_heavy", "over_torch_sparse", "kernel_ratio",
    "gather_ratio", "gather_ratio_tls", "idle_share", "memory_growth", "cache_hit_rate",
    "remote_bytes_saved",
)  # fmt: skip


def kernel(folder: Path, scratch: Path, effort: Effort, dgl: str | None) -> dict[str, Any]:
    """Three hops on one core: our kernels beside DGL's, on the same seeds."""
    from headrace.graph.local_sampling import LocalSampler
    from headrace.graph.opening import open_graph
    from headrace.graph.sampling import BatchKey

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the rival inherits it
    model = Model(0, (15, 10, 5), 1024, 0, 0, 0)
    sampler = LocalSampler(open_graph(folder))
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


def gather(folder: Path, scratch: Path, effort: Effort, tls: bool) -> dict[str, Any]:
    """Rows from a store process, and over a bare socket from a process that only does this."""
    from headrace.graph.opening import open_graph
    from headrace.graph.service.allocator import keep_freed_memory

    keep_freed_memory()  # as processes do that ask stores all the time
    x = open_graph(folder).part(0).column("node", "x")
    rng = np.random.default_rng(0)
    requests = [rng.integers(0, len(x), NUM_ROWS) for _ in range(effort.gather_requests)]
    settings = {
        "file": str(folder / "part-0" / "node-0" / "x.bin"),
        "shape": x.shape,
        "num_rows": NUM_ROWS,
        "tls": tls,
    }
    x.sum()  # both read from memory
    taken: dict[str, list[float]] = {}
    with (
        running_stores(folder, [0], scratch / f"stores-{tls}", tls) as stores,
        stores.connect() as client,
        bare_socket(scratch / f"socket-{tls}", settings) as end,
    ):
        same = np.array_equal(client.gather("node", "x", requests[0]), x[requests[0]])
        for in_flight in (1, 4):
            sides = {
                f"service {in_flight}": partial(by_service, client, requests, in_flight),
                f"socket {in_flight}": partial(by_socket, end, requests, in_flight, x.shape[1]),
            }
            for side in sides.values():
                side()
            for _ in range(effort.gather_rounds):
                for name, side in sides.items():
                    taken.setdefault(name, []).append(side())
    megabytes = len(requests) * NUM_ROWS * x.shape[1] * 4 / 1e6
    return {
        "ratio": over(taken["socket 1"], taken["service 1"]),
        "ratio_4_in_flight": over(taken["socket 4"], taken["service 4"]),
        "megabytes_per_s": {
            name: round(megabytes / statistics.median(each)) for name, each in taken.items()
        },
        "same_rows": same,
        "tls": tls,
    }


def by_service(client: Any, requests: list[np.ndarray], in_flight: int) -> float:
    waiting: deque[Any] = deque()
    begin = time.perf_counter()
    for ids in requests:
        waiting.append(client.gather_soon("node", "x", ids))
        if len(waiting) == in_flight:
            waiting.popleft().result()
    for future in waiting:
        future.result()
    return time.perf_counter() - begin


def by_socket(end: Any, requests: list[np.ndarray], in_flight: int, width: int) -> float:
    num = 0
    begin = time.perf_counter()
    for sent, ids in enumerate(requests, 1):
        end.sendall(ids.data.cast("B"))
        while num < sent and (sent - num == in_flight or sent == len(requests)):
            # An array of its own, as the service gives one.
            rivals.receive(end, np.empty((NUM_ROWS, width), np.float32))
            num += 1
    return time.perf_counter() - begin


@contextmanager
def bare_socket(folder: Path, settings: dict[str, Any]) -> Iterator[Any]:
    """A connection to a process that does nothing but answer on a socket."""
    from headrace.graph.service.security import Authority

    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(settings))
    if settings["tls"]:
        authority = Authority(datetime.now(UTC), timedelta(hours=12))
        for side, hosts in (("server", ["127.0.0.1"]), ("client", [])):
            identity = authority.issue(side, hosts)
            (folder / f"{side}.pem").write_bytes(identity.certificate)
            (folder / f"{side}-key.pem").write_bytes(identity.key.reveal())
            (folder / "authority.pem").write_bytes(identity.authority)
    command = [sys.executable, str(ROOT / "benchmarks" / "rivals.py"), "socket", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with rivals.wrapped(plain, folder, settings, server_side=False) as end:
            yield end


def memory(folder: Path, effort: Effort) -> dict[str, Any]:
    """Memory of a trainer and two samplers, early and late."""
    from headrace.graph.feeding.feed import start_feed
    from headrace.training.heap import reuse_memory

    reuse_memory()
    model = Model(64, (15, 10), effort.memory_batch_size, 0, 0, 0)
    trainer, used = Trainer(model), []
    with start_feed(*configs(folder, train_seeds(folder), model, 2), time.perf_counter) as feed:
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
    from headrace.graph.feeding.feed import start_feed
    from headrace.graph.opening import open_graph

    graph = open_graph(folder)
    part = graph.part(0)
    remote = graph.num_nodes("node") - part.num_nodes("node")
    budget = remote * 128 * 4 // 10
    seeds = np.array(part.original_ids("node")[part.split("node", "train")])
    model = Model(0, (15, 10), effort.cache_batch_size, 0, 0, 0)
    found: dict[str, Any] = {"budget_bytes": budget, "remote_bytes": remote * 128 * 4}
    with running_stores(folder, range(1, graph.num_parts), scratch / "cached") as stores:
        for policy in effort.cache_policies:
            kept = {"num_bytes": budget, "policy": policy, "home": 0}
            made = configs(folder, seeds, model, 1, cache=kept, **stores.settings())
            with start_feed(*made, time.perf_counter) as feed:
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


def prepare(source: str, folder: Path, num_parts: int, method: str) -> None:
    from headrace.api.graph import partition

    partition(source, folder, num_parts, method=method)


def run(args: argparse.Namespace, scratch: Path, say: Callable[[str, Any], None]) -> dict[str, Any]:
    """All measurements that are asked for."""
    effort = QUICK if args.quick else FULL
    only = set(args.only.split(",")) if args.only else set()
    found: dict[str, Any] = {}
    skipped: dict[str, str] = {}

    def measure(*calls: tuple[str, Callable[..., Any], tuple[Any, ...]]) -> None:
        """Several in one process, which saves its start."""
        wanted = [call for call in calls if not only or call[0] in only]
        if wanted:
            found.update(answers := apart(together, wanted))
            for name, value in answers.items():
                say(name, value)

    whole, parts = scratch / "whole", scratch / "parts"
    method = "fennel" if args.quick else "auto"
    with ThreadPoolExecutor() as pool:
        made = [pool.submit(apart, prepare, GRAPH, whole, 1, "range")]
        if not only or "cache" in only:
            made.append(pool.submit(apart, prepare, effort.cache_graph, parts, NUM_PARTS, method))
        for each in made:
            each.result()
    sparse = None
    if args.sparse_python:
        apart(hand_over, whole, scratch / "sparse", effort.light, True)
        sparse = [args.sparse_python, str(ROOT / "benchmarks" / "rivals.py"), "torch-sparse"]
        sparse.append(str(scratch / "sparse"))
    else:
        skipped["over_torch_sparse"] = "no Python with torch-sparse was given: --sparse-python"
    if not args.dgl_python:
        skipped["kernel_ratio"] = "no Python with DGL was given: --dgl-python"
    settings = (args.samplers, effort.is_full)
    measure(
        ("light", end_to_end, (whole, effort.light, *settings, sparse)),
        ("heavy", end_to_end, (whole, effort.heavy, *settings, None)),
    )
    measure(("kernel", kernel, (whole, scratch, effort, args.dgl_python)))
    measure(
        ("gather", gather, (whole, scratch, effort, False)),
        ("gather_tls", gather, (whole, scratch, effort, True)),
    )
    measure(("memory", memory, (whole, effort)))
    measure(("cache", cache, (parts, scratch, effort)))
    return headlines(found) | {"skipped": skipped, "details": found}


def headlines(found: dict[str, Any]) -> dict[str, Any]:
    """The figures that have requirements."""
    places = (
        ("light", "ratio"), ("heavy", "ratio"), ("light", "over_torch_sparse"),
        ("kernel", "ratio"), ("gather", "ratio"), ("gather_tls", "ratio"),
        ("heavy", "idle_share"), ("memory", "growth"),
    )  # fmt: skip
    kept = found.get("cache", {}).get("frequency", {})
    values = [found.get(name, {}).get(key) for name, key in places]
    return dict(zip(HEADLINES, [*values, kept.get("hit_rate"), kept.get("saved")], strict=True))


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds of everything")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument(
        "--only",
        help="comma-separated, of light, heavy, kernel, gather, gather_tls, memory, cache",
    )
    parser.add_argument("--samplers", type=int, default=1, help="sampler processes (1)")
    parser.add_argument("--dgl-python", help="a Python that has DGL 1.1.3")
    parser.add_argument("--sparse-python", help="a Python that has PyG and torch-sparse")
    parser.add_argument("--scratch", type=Path, help="folder for some 3 GB of files")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    began = time.perf_counter()

    def say(name: str, value: Any) -> None:
        if not args.json:
            print(f"{name}: {json.dumps(value)}", flush=True)

    # Processes that are started find the same headrace.
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), inherited]))
    with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
        document = run(args, Path(scratch), say)
    document |= {
        "seconds": round(time.perf_counter() - began, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/data_path.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
