"""Stores and samplers that are killed at random moments; see `benchmarks/kills.py`."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from tests.support.stores import running_stores  # noqa: E402

GRAPH = "generated:nodes=2e4,edges=2e5,features=32"
NUM_PARTS, NUM_SAMPLERS = 3, 2
BATCH_SIZE = 64
START_S = 3.0
MOST_BATCHES = 150
PROMISED_S = 15.0
# Of a whole trial, most of which is starting: a crowded machine needs more than a minute.
HANG_S = 300.0
SEGMENTS = "memfd:headrace"


def prepare(folder: Path) -> None:
    from headrace.api.graph import partition

    partition(GRAPH, folder, NUM_PARTS, method="hash")


def trial(graph: Path, seed: int, scratch: Path) -> dict[str, Any]:
    """Kill one process; what the trainer was told, and how soon."""
    # Loading this takes as long as samplers need to start: they would never be killed before.
    import torch_geometric.data  # noqa: F401

    from headrace.graph.sampler_worker.channels.errors import PrefetchError
    from tests.support.sampler_processes import start_prefetcher

    rng = np.random.default_rng(seed)
    victim = int(rng.integers(NUM_SAMPLERS + NUM_PARTS - 1))
    if rng.random() < 1 / 3:
        after_batches, wait_s = 0, rng.uniform(0, START_S)
    else:
        after_batches, wait_s = int(rng.integers(1, MOST_BATCHES)), rng.uniform(0, 0.1)
    found: dict[str, Any] = {
        "seed": seed,
        "moment": f"{after_batches} batches and {wait_s:.3f} s",
        "error": None,
    }
    with running_stores(graph, range(1, NUM_PARTS), scratch / "stores") as stores:
        configs, seeds = samplers(graph, stores.settings())
        with start_prefetcher(configs, seeds, time.perf_counter) as prefetcher:
            victims = [(process.name, process.pid) for process in prefetcher.processes]
            victims += [
                (f"{store.address.task} on {store.address.machine}", store.process.pid)
                for store in stores.stores
            ]
            found["victim"], pid = victims[victim]
            found["pids"] = [pid for _, pid in victims]
            killed_at: list[float] = []

            def kill() -> None:
                os.kill(pid, signal.SIGKILL)
                killed_at.append(time.monotonic())

            timer = threading.Timer(wait_s, kill)
            num_batches, failed_at = 0, 0.0
            if after_batches == 0:
                timer.start()
            try:
                while True:
                    for batch in prefetcher:
                        num_batches += 1
                        del batch
                        if num_batches == after_batches:
                            timer.start()
            except PrefetchError as error:
                found["error"] = str(error)
                failed_at = time.monotonic()
            if timer.ident is not None:
                timer.join()
            # A timer that was never started means an error that nobody caused.
            found["was_early"] = not killed_at or failed_at < killed_at[0] - 0.1
            found["after_s"] = round(failed_at - killed_at[0], 3) if killed_at else None
            found["batches"] = num_batches
    del prefetcher
    gc.collect()
    found["segments"] = Path("/proc/self/maps").read_text().count(SEGMENTS)
    return found


def samplers(graph: Path, reaching: dict[str, Any]) -> tuple[list[Any], list[np.ndarray]]:
    """All samplers of the trainer, and their seeds; they have one part, stores have the others."""
    from headrace.graph.sampler_worker.config import SamplerConfig
    from headrace.graph.sampler_worker.schedule import batches_per_epoch, sampler_batch_size

    seeds = np.array_split(np.arange(0, 20_000, 10), NUM_SAMPLERS)
    configs = [
        SamplerConfig(
            task=f"sampler {s}",
            machine="machine 0",
            graph=graph,
            node_type="node",
            seeds=Path("given"),
            seeds_per_iteration=sampler_batch_size(BATCH_SIZE, NUM_SAMPLERS, s),
            batches_per_epoch=batches_per_epoch([len(own) for own in seeds], BATCH_SIZE),
            fanouts=((("node", "to", "node"), (10, 5)),),
            **reaching,
        )
        for s in range(NUM_SAMPLERS)
    ]
    return configs, seeds


def judge(graph: Path, seed: int, promised_s: float) -> dict[str, Any]:
    """Run a trial as a process, and look for what it left behind."""
    shared = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(seed), str(graph), scratch],
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return {"seed": seed, "problems": ["it hangs"]}
        if process.returncode != 0:
            log.seek(0)
            return {"seed": seed, "problems": [log.read().decode(errors="replace")[-2000:]]}
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    error = found["error"] or "none"
    # A process that was told to end may take a moment; so may somebody who has just made memory.
    end = time.monotonic() + 30
    while time.monotonic() < end:
        left = of_session(process.pid)
        forgotten = orphans(set(os.listdir("/dev/shm")) - shared)
        if not left and not forgotten:
            break
        time.sleep(0.05)
    checks = {
        f"the error came after {found['after_s']} s": (found["after_s"] or 0) > promised_s,
        f"there was an error before anybody died: {error}": found["was_early"],
        f"the error does not name {found['victim']}: {error}": found["victim"] not in error,
        f"processes are left: {left}": bool(left),
        f"{found['segments']} segments are mapped": found["segments"] > 0,
        f"shared memory is left: {forgotten}": bool(forgotten),
    }
    return found | {"problems": [problem for problem, is_so in checks.items() if is_so]}


def of_session(session: int) -> list[int]:
    """Living processes that a trial started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


def orphans(names: Iterable[str]) -> list[str]:
    """Those pieces of shared memory that no living process uses; others belong to others."""
    used = ""
    for path in Path("/proc").glob("[0-9]*/maps"):
        try:
            used += path.read_text()
        except OSError:
            continue
    return [
        name for name in names if Path("/dev/shm", name).exists() and f"/dev/shm/{name}" not in used
    ]


def run(
    seeds: Sequence[int],
    log: Callable[[dict[str, Any]], None] = lambda found: None,
    promised_s: float = PROMISED_S,
) -> dict[str, Any]:
    """All trials, one after the other; an error must come within the promised time."""
    trials = []
    with tempfile.TemporaryDirectory() as scratch:
        graph = Path(scratch) / "graph"
        prepare(graph)
        for seed in seeds:
            trials.append(judge(graph, seed, promised_s))
            log(trials[-1])
    delays = [found["after_s"] for found in trials if found.get("after_s") is not None]
    return {
        "trials": len(trials),
        "failed": {found["seed"]: found["problems"] for found in trials if found["problems"]},
        "slowest_s": max(delays, default=None),
        "median_s": round(float(np.median(delays)), 3) if delays else None,
        "victims": Counter(found.get("victim", "?") for found in trials),
        "before_first_batch": sum(found.get("batches") == 0 for found in trials),
        "each": trials,
    }


if __name__ == "__main__":
    _seed, _graph, _scratch = sys.argv[1:]
    sys.stdout.write(json.dumps(trial(Path(_graph), int(_seed), Path(_scratch))) + "\n")
