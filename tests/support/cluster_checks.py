"""What a run did, checked from outside: gradients, bytes, places, processes that are left."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.trace import Trace
from headrace.graph.format.partitioned_graph import open_graph
from headrace.profiling.trace_assembly import read_records
from headrace.testbed import LinkBytes, Testbed
from tests.support.cluster_bed import Run, Seen, events, processes

GRACE_S = 60.0
HEADER_BYTES = 66
"""Of Ethernet, IP and TCP with timestamps; a packet of several segments has one header here."""

SNAPSHOT_S, SNAPSHOT_TRIES = 0.1, 20


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
    for record in read_records((folder / "trace-trainer0.jsonl").read_bytes().splitlines()):
        if record[:3] == ["exec", "trainer0", 0]:
            return float(record[3] - begin_s)
    raise RuntimeError("trainer0 has recorded no first step")


def bytes_by_machine(
    trace: Trace, folder: Path, first: Snapshot, last: Snapshot
) -> dict[str, dict[str, float]]:
    """Bytes in and out of machines between two moments: by the trace, by the links' counters.

    Headers and acknowledgements are not counted; a busy machine sends more of them.
    """
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
            num_packets = after[k + 2] - before[k + 2]
            found[f"{name} {way}"] = {
                "traced": float(sums[m]),
                "counted": float(after[k] - before[k] - HEADER_BYTES * num_packets),
            }
    return found


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

    from tests.support.reassemble import reassemble

    source = reassemble(open_graph(folder))
    (nodes,), (edges,) = source.nodes, source.edges
    pairs = np.concatenate([np.stack(pair) for pair in edges.chunks()], axis=1)
    data = Data(edge_index=torch.from_numpy(pairs.astype(np.int64)))
    for column in nodes.columns:
        data[column.name] = torch.from_numpy(np.array(column.read(0, nodes.num_nodes)))
    data.train = torch.from_numpy(np.asarray(nodes.splits["train"], np.int64))
    return data


def left_over(bed: Testbed) -> list[str]:
    """Processes of a run that do not end, and folders that it leaves."""
    end_s = time.monotonic() + GRACE_S
    while True:
        left = [f"process {pid} ({seen.kind})" for pid, seen in processes(bed).items()]
        if not left or time.monotonic() > end_s:
            return left
        time.sleep(0.2)


def is_placed(run: Run, folder: Path) -> bool:
    """Whether every task says, from inside, that it is where the plan wants it."""
    addresses = {host.name: host.address for host in run.bed.hosts}
    placement = run.plan.placement
    where = {f"store{m}": name for m, name in enumerate(addresses)}
    per = len(placement.samplers) // len(placement.trainers)
    where |= {f"sampler{s // per}.{s % per}": name for s, name in enumerate(placement.samplers)}
    where |= {f"trainer{w}": name for w, name in enumerate(placement.trainers)}
    where |= {f"ps{p}": name for p, name in enumerate(placement.servers)}
    (places,) = events(folder, "places")
    found = {task: place["address"] for task, place in places["tasks"].items()}
    return found == {task: addresses[name] for task, name in where.items()}
