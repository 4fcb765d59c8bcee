"""Kill a store or a sampler at a random moment, again and again; somebody must say so.

    python benchmarks/kills.py --json
    python benchmarks/kills.py --quick --json

Two stores and two samplers feed a trainer; all are processes. Every trial is a process too, with
its own seed, which says who is killed and when: in one trial of three while samplers start, else
after some batches, also in the middle of one. The trainer must meet an error within 15 s that names
the task and its machine; afterwards no process of the trial is left, and no shared memory. The last
line is one JSON object: `failed` has what went wrong per trial, `slowest_s` the longest time from a
death to its error.
"""

from __future__ import annotations

import argparse
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
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.machine import describe_machine
from benchmarks.stores import running_stores

ROOT = Path(__file__).resolve().parents[1]
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

    from headrace.graph.feeding.errors import FeedError
    from headrace.graph.feeding.feed import start_feed

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
        with start_feed(configs, seeds, time.perf_counter) as feed:
            victims = [(process.name, process.pid) for process in feed.processes]
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
                    for batch in feed:
                        num_batches += 1
                        del batch
                        if num_batches == after_batches:
                            timer.start()
            except FeedError as error:
                found["error"] = str(error)
                failed_at = time.monotonic()
            if timer.ident is not None:
                timer.join()
            # A timer that was never started means an error that nobody caused.
            found["was_early"] = not killed_at or failed_at < killed_at[0] - 0.1
            found["after_s"] = round(failed_at - killed_at[0], 3) if killed_at else None
            found["batches"] = num_batches
    del feed
    gc.collect()
    found["segments"] = Path("/proc/self/maps").read_text().count(SEGMENTS)
    return found


def samplers(graph: Path, reaching: dict[str, Any]) -> tuple[list[Any], list[np.ndarray]]:
    """All samplers of the trainer, and their seeds; they have one part, stores have the others."""
    from headrace.graph.feeding.config import SamplerConfig
    from headrace.graph.feeding.scheduling import batches_per_epoch, share_of

    seeds = np.array_split(np.arange(0, 20_000, 10), NUM_SAMPLERS)
    configs = [
        SamplerConfig(
            task=f"sampler {s}",
            machine="machine 0",
            graph=graph,
            node_type="node",
            seeds=Path("given"),
            share=share_of(BATCH_SIZE, NUM_SAMPLERS, s),
            batches_per_epoch=batches_per_epoch([len(own) for own in seeds], BATCH_SIZE),
            fanouts=((("node", "to", "node"), (10, 5)),),
            **reaching,
        )
        for s in range(NUM_SAMPLERS)
    ]
    return configs, seeds


def judge(graph: Path, seed: int) -> dict[str, Any]:
    """Run a trial as a process, and look for what it left behind."""
    shared = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, __file__, "--trial", str(seed), str(graph), scratch],
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
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
        f"the error came after {found['after_s']} s": (found["after_s"] or 0) > PROMISED_S,
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


def run(num_trials: int, first_seed: int = 0, say: Any = lambda found: None) -> dict[str, Any]:
    """All trials, one after the other."""
    trials = []
    with tempfile.TemporaryDirectory() as scratch:
        graph = Path(scratch) / "graph"
        prepare(graph)
        for seed in range(first_seed, first_seed + num_trials):
            trials.append(judge(graph, seed))
            say(trials[-1])
    delays = [found["after_s"] for found in trials if found.get("after_s") is not None]
    return {
        "trials": num_trials,
        "failed": {found["seed"]: found["problems"] for found in trials if found["problems"]},
        "slowest_s": max(delays, default=None),
        "median_s": round(float(np.median(delays)), 3) if delays else None,
        "victims": Counter(found.get("victim", "?") for found in trials),
        "before_first_batch": sum(found.get("batches") == 0 for found in trials),
        "each": trials,
    }


def main() -> int:
    """Run the trials."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="5 trials")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--trials", type=int, default=30, help="how many (30)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first trial (0)")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    parser.add_argument("--trial", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.trial:
        seed, graph, scratch = args.trial
        print(json.dumps(trial(Path(graph), int(seed), Path(scratch))))
        return 0
    began = time.perf_counter()

    def say(found: dict[str, Any]) -> None:
        if not args.json:
            print(json.dumps(found), flush=True)

    document = run(5 if args.quick else args.trials, args.first_seed, say)
    document |= {
        "seconds": round(time.perf_counter() - began, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine(),
        "command": "python benchmarks/kills.py " + " ".join(sys.argv[1:]),
    }
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 1 if document["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
