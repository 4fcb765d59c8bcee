"""What a run did, checked from outside: gradients, points, bytes, processes that are left."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cluster_bed import Layout, Seen, processes
from headrace.core.trace import Trace
from headrace.graph.opening import open_graph
from headrace.runtime.testbed import LinkBytes, Testbed
from headrace.runtime.tracing import read_records

if TYPE_CHECKING:
    from benchmarks.batch_sources import Whole
    from benchmarks.cluster_runtime import Bench

GRACE_S = 60.0
SNAPSHOT_S, SNAPSHOT_TRIES = 0.1, 20
CALLS_PER_STORE = 4  # two hops, features and labels


@dataclass(frozen=True)
class Snapshot:
    """Processes and counters at one moment."""

    at_s: float
    seen: Mapping[int, Seen]
    links: Mapping[str, LinkBytes]


def snapshot(bed: Testbed, seen: Mapping[int, Seen]) -> Snapshot:
    # Whoever reads the counters may have to wait for a processor, and then they are of no moment.
    for _ in range(SNAPSHOT_TRIES):
        begin_s = time.monotonic()
        links = bed.traffic()
        end_s = time.monotonic()
        if end_s - begin_s < SNAPSHOT_S:
            break
    return Snapshot((begin_s + end_s) / 2, seen, links)


def origin_s(trace: Trace, folder: Path) -> float:
    """Time of the driver's clock at which a trace begins."""
    at = trace.task_names.index("trainer0")
    rows = (trace.executions.task == at) & (trace.executions.iteration == 0)
    (begin_s,) = trace.executions.start_s[rows]
    for record in read_records((folder / "trace-trainer0.jsonl").read_bytes()):
        if record[:3] == ["exec", "trainer0", 0]:
            return float(record[3] - begin_s)
    raise RuntimeError("trainer0 has recorded no first step")


def bytes_by_machine(
    trace: Trace, folder: Path, first: Snapshot, last: Snapshot
) -> dict[str, dict[str, float]]:
    """Bytes in and out of machines between two moments: by the trace, by the links' counters."""
    zero_s = origin_s(trace, folder)
    begin_s, end_s = first.at_s - zero_s, last.at_s - zero_s
    flows = trace.flows
    length_s = np.maximum(flows.end_s - flows.start_s, 1e-9)
    inside_s = np.minimum(flows.end_s, end_s) - np.maximum(flows.start_s, begin_s)
    moved = flows.num_bytes * np.clip(inside_s / length_s, 0, 1)
    num = len(trace.machine_names)
    found = {}
    for way, ends in (("in", flows.dst), ("out", flows.src)):
        sums = np.bincount(trace.task_machines[ends], weights=moved, minlength=num)
        for m, name in enumerate(trace.machine_names):
            before, after = first.links[name], last.links[name]
            k = 0 if way == "in" else 1
            found[f"{name} {way}"] = {
                "traced": float(sums[m]),
                "counted": float(after[k] - before[k]),
            }
    return found


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

    from headrace.graph.feeding.recording import PartRecorder, Recorder, StepRecorder
    from headrace.graph.feeding.scheduling import Job
    from headrace.graph.service.measuring import measured_store
    from headrace.graph.service.messages import Message

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
    recorder = Recorder(Path(os.devnull), "sampler0.0", time.monotonic)
    parts, steps = PartRecorder(recorder, num, time.thread_time), StepRecorder(recorder)
    spent_s = {}
    for measured in (False, True):
        began_s = time.process_time()
        for number in range(num):
            notes = parts.begin(Job(0, number, ids))
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


def gradient_difference(folder: Path, graph: Path, config: Mapping[str, Any]) -> float:
    """Largest difference to the gradients of one process with plain PyG on the whole graph."""
    import torch
    from torch.nn.functional import cross_entropy
    from torch_geometric.nn import GraphSAGE

    data = whole_graph(graph)
    said = json.loads((folder / "gradients-0.json").read_text())
    seeds = [said["seeds"]]
    for path in sorted((folder / "logs").glob("trainer*.log")):
        for line in path.read_text().splitlines():
            if line.startswith("SEEDS "):
                told = json.loads(line.removeprefix("SEEDS "))
                if told["rank"]:
                    seeds.append(told["seeds"])
    torch.manual_seed(0)
    model = GraphSAGE(
        config["features"], config["width"], len(config["fanouts"]), config["classes"]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worst = 0.0
    taken: list[int] = []
    for step, expected in enumerate(said["gradients"]):
        batch = [seed for own in seeds for seed in own[step]]
        taken += batch
        optimizer.zero_grad()
        out = model(data.x, data.edge_index)[batch]
        cross_entropy(out, data.y[batch]).backward()
        for parameter, other in zip(model.parameters(), expected, strict=True):
            assert parameter.grad is not None
            difference = parameter.grad.flatten() - torch.tensor(other)
            worst = max(worst, float(difference.abs().max()))
        optimizer.step()
    if sorted(taken) != sorted(data.train.tolist()):
        raise RuntimeError("an epoch did not take every seed once")
    return worst


def whole_graph(folder: Path) -> Any:
    """A partitioned graph in one piece, as PyG has it."""
    import torch
    from torch_geometric.data import Data

    from headrace.graph.reassembling import reassemble

    source = reassemble(open_graph(folder))
    (nodes,), (edges,) = source.nodes, source.edges
    pairs = np.concatenate([np.stack(pair) for pair in edges.chunks()], axis=1)
    data = Data(edge_index=torch.from_numpy(pairs.astype(np.int64)))
    for column in nodes.columns:
        data[column.name] = torch.from_numpy(np.array(column.read(0, nodes.num_nodes)))
    data.train = torch.from_numpy(np.asarray(nodes.splits["train"], np.int64))
    return data


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
    """Parts that know who trains and who is tested."""
    import torch

    from headrace.api.graph import partition

    data = whole.data.clone()
    for split, ids in whole.splits.items():
        data[f"{split}_mask"] = torch.zeros(data.num_nodes, dtype=torch.bool)
        data[f"{split}_mask"][torch.from_numpy(ids)] = True
    shutil.rmtree(folder, ignore_errors=True)
    partition(data, folder, 4)
    return folder


def left_over(bed: Testbed) -> list[str]:
    """Processes of a run that do not end, and folders that it leaves."""
    end_s = time.monotonic() + GRACE_S
    while True:
        left = [f"process {pid} ({seen.kind})" for pid, seen in processes(bed).items()]
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.2)


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
