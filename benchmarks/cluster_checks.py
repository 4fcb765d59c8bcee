"""What a run did, checked from outside: gradients, points, bytes, processes that are left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.testbed import Testbed
from tests.support.cluster_bed import Layout

if TYPE_CHECKING:
    from benchmarks.batch_sources import Whole
    from benchmarks.cluster_runtime import Bench

CALLS_PER_STORE = 4  # two hops, features and labels


_IDLE_WORKERS = """
import resource, sys, time
import ray
ray.init("auto", log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=0)
class Idle:
    def cpu_s(self):
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

workers = [Idle.options(scheduling_strategy="SPREAD").remote() for _ in range(int(sys.argv[1]))]
ray.get([worker.cpu_s.remote() for worker in workers])
time.sleep(5)
before, began = ray.get([worker.cpu_s.remote() for worker in workers]), time.monotonic()
time.sleep(20)
after = ray.get([worker.cpu_s.remote() for worker in workers])
print("SHARE", (sum(after) - sum(before)) / (time.monotonic() - began))
"""


def idle_workers_share(bed: Testbed, num_workers: int) -> float:
    """CPU seconds per second that Ray's own threads take in workers which do nothing at all."""
    command = bed.command("m0", [sys.executable, "-c", _IDLE_WORKERS, str(num_workers)])
    said = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    shares = [line.split()[1] for line in said.stdout.splitlines() if line.startswith("SHARE")]
    if not shares:
        raise RuntimeError(f"idle workers did not start: {said.stderr[-1000:]}")
    return float(shares[0])


def recording_cost_s(num_samplers: int, num_trainers: int, num_stores: int) -> float:
    """CPU seconds per iteration that recording costs all tasks, by doing it without the rest."""
    from concurrent.futures import Future

    from headrace.rpc.call_meter import measured_store
    from headrace.rpc.framing import Message
    from headrace.tracing.task_trace import StepRecorder, SubBatchRecorder, TraceWriter

    class Nobody:
        def ask(self, fields: Any, arrays: Any, timeout_s: float) -> Future[Message]:
            future: Future[Message] = Future()
            future.set_result(answer)
            return future

        def close(self) -> None:
            pass

    ids, num = np.zeros(10, np.int64), 500
    answer = Message(0, {"service_s": 0.001}, (ids,))
    channels = [measured_store(Nobody(), f"store{i}", time.monotonic) for i in range(num_stores)]
    recorder = TraceWriter(Path(os.devnull), "sampler0.0", time.monotonic)
    parts, steps = SubBatchRecorder(recorder, num, time.thread_time), StepRecorder(recorder)
    spent_s = {}
    for measured in (False, True):
        began_s = time.process_time()
        for number in range(num):
            notes = parts.begin(0, number, 1)
            with notes.working():
                for channel in channels:
                    for _ in range(CALLS_PER_STORE):
                        asked = channel if measured else Nobody()
                        asked.ask({"op": "gather", "of": "node"}, (ids,), 1.0)
            if measured:
                parts.end(notes, 1)
        spent_s[measured] = (time.process_time() - began_s) / num
    began_s = time.process_time()
    for _ in range(num):
        steps.begin()
        steps.exchange(0.0, 1.0, 1)
        steps.end()
    recorder.close()
    step_s = (time.process_time() - began_s) / num
    return num_samplers * (spent_s[True] - spent_s[False]) + num_trainers * step_s


def accuracy(bench: Bench, name: str, num_seeds: int) -> dict[str, Any]:
    """Points of three trainers on the cluster and of one process with PyG's own loop."""
    import torch

    from benchmarks.batch_sources import DATA, TASKS, Task, load, plain_nodes, pyg_nodes
    from benchmarks.same_mathematics import has_pyg_sampler, train, verdict

    photo = Task(str(DATA / "amazon_photo"), batch_size=510, num_epochs=40)
    task = {**TASKS, "amazon_photo": photo}[name]
    folder = bench.scratch / f"accuracy-{name}"
    shutil.rmtree(folder, ignore_errors=True)
    whole = load(task, folder)
    parts = _with_splits(whole, bench.scratch / f"parts-{name}")
    config = {
        "task": "points",
        "seeds": num_seeds,
        "epochs": task.num_epochs,
        "features": whole.flat.x.shape[1],
        "classes": int(whole.flat.y.max()) + 1,
        "width": task.width,
        "fanouts": list(task.fanouts),
    }
    run = bench.run(Layout(), parts, task.batch_size // 3, config)
    reports = (run.end() / "reports.jsonl").read_text().splitlines()
    ours = [json.loads(line)["figures"]["points"] for line in reports]
    source = pyg_nodes if has_pyg_sampler() else plain_nodes
    torch.set_num_threads(1)
    theirs = []
    for seed in range(num_seeds):
        torch.manual_seed(1000 + seed)
        theirs.append(train(whole, task, seed, source(whole, task, seed)))
    found: dict[str, Any] = verdict(ours, theirs)
    return found | {"points": {"ours": ours, "reference": theirs}}


def _with_splits(whole: Whole, folder: Path) -> Path:
    """Graph partitions with training and test splits."""
    import torch

    from headrace.api.graph import partition

    data = whole.data.clone()
    for split, ids in whole.splits.items():
        data[f"{split}_mask"] = torch.zeros(data.num_nodes, dtype=torch.bool)
        data[f"{split}_mask"][torch.from_numpy(ids)] = True
    shutil.rmtree(folder, ignore_errors=True)
    partition(data, folder, 4)
    return folder


def names_on_this_machine() -> set[str]:
    """Links, network namespaces and Ray's processes."""

    def words(*command: str) -> set[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return {line.split("@")[0].strip() for line in done.stdout.splitlines()}

    names = words("ip", "-o", "-br", "link") | words("ip", "netns", "list")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"raylet" in text or b"gcs_server" in text or b"headrace" in text:
                names.add(f"process {entry.name}")
    return names
