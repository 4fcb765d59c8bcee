"""What `graph_data.py` measures of written parts: the start of a process, real datasets."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"

FIRST_SAMPLE = """
import sys, time
began = time.perf_counter()
from pathlib import Path
import numpy as np
from headrace.graph.sampling.hop import LocalSource
from headrace.graph.sampling.local_edges import open_edge_parts
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.sampling.neighbor_sampler import BatchKey, Sampler
def own():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(l.split()[1]) for l in lines if l.startswith("Private_")) / 1024
imported = time.perf_counter()
before = own()
graph = open_graph(sys.argv[1])
opened = time.perf_counter()
train = graph.part(0).split("node", "train")[:1000]
num_nodes = {name: graph.num_nodes_of(name) for name in graph.node_types}
sampler = Sampler(LocalSource(open_edge_parts(graph)), num_nodes, graph.edge_types)
sampled = sampler.sample_hetero({"node": train}, [15, 10], BatchKey(0, 0, 0))
seconds = (imported - began, opened - imported, time.perf_counter() - imported)
print(*seconds, own() - before, len(sampled.node["node"]))
sys.stdout.flush()
sys.stdin.read()
"""


def start(folder: Path) -> dict[str, float]:
    """Two processes open the same parts, one after the other."""
    import os
    import subprocess

    def launch() -> tuple[subprocess.Popen[str], list[float]]:
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", FIRST_SAMPLE, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        )
        assert process.stdout is not None
        figures = [float(word) for word in process.stdout.readline().split()]
        return process, [time.perf_counter() - began, *figures]

    warm, _ = launch()  # compiles, if nothing has before
    warm.communicate("")
    first, figures = launch()
    second, more = launch()
    for process in (first, second):
        process.communicate("")
    return {
        "first_sample_s": round(figures[0], 3),
        "imports_s": round(figures[1], 3),
        "open_s": round(figures[2], 4),
        "open_and_sample_s": round(figures[3], 3),
        "second_process_own_mib": round(more[4], 1),
        "sampled_nodes": int(figures[5]),
    }


def datasets() -> list[str]:
    """What `headrace partition` takes of the folder of real graphs."""
    names = [f"planetoid/{name}.npz" for name in ("cora", "citeseer", "pubmed")]
    names += ["amazon_computers", "amazon_photo", "coauthor_cs", "coauthor_physics"]
    names += ["debian_bookworm", "wordnet30", "fb15k-237", "wn18rr"]
    names += ["gds_hetero/imdb", "gds_hetero/lastfm"]
    return [
        name for name in names if (DATA / name.replace("/imdb", "").replace("/lastfm", "")).exists()
    ]


def real(name: str) -> dict[str, Any]:
    """Partition a dataset; what comes back is what went in."""
    from headrace.api.graph import partition, verify

    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "parts"
        began = time.perf_counter()
        graph = partition(str(DATA / name), folder, 4)
        seconds = time.perf_counter() - began
        problems = verify(folder)
        same = all(
            np.array_equal(
                graph.to_original(kind, graph.to_new(kind, np.arange(graph.num_nodes_of(kind)))),
                np.arange(graph.num_nodes_of(kind)),
            )
            for kind in graph.node_types
        )
        return {
            "nodes": sum(graph.num_nodes_of(kind) for kind in graph.node_types),
            "edges": sum(graph.num_edges_of(kind) for kind in graph.edge_types),
            "seconds": round(seconds, 2),
            "verified": not problems,
            "ids_round_trip": same,
        }


def feature_types(name: str, num_seeds: int) -> dict[str, float]:
    """Test accuracy of a 2-layer GraphSAGE by the type that features are stored in."""
    import torch
    from torch_geometric.nn import SAGEConv

    from headrace.graph.sources.resolve import open_source

    source = open_source(str(DATA / name), 0)
    table = source.nodes[0]
    columns = {column.name: column.read(0, table.num_nodes) for column in table.columns}
    src, dst = (np.concatenate(ends) for ends in zip(*source.edges[0].chunks(), strict=True))
    edges = torch.from_numpy(np.stack([src, dst]).astype(np.int64))
    labels = torch.from_numpy(columns["y"].astype(np.int64))
    train, test = (torch.from_numpy(table.splits[split]) for split in ("train", "test"))
    stored = torch.from_numpy(np.array(columns["x"], np.float32))
    found = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = stored.to(dtype).float()
        scores = []
        for seed in range(num_seeds):
            torch.manual_seed(seed)
            first = SAGEConv(x.shape[1], 64)
            last = SAGEConv(64, int(labels.max()) + 1)
            optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=0.01)
            for _ in range(60):
                optimizer.zero_grad()
                out = last(first(x, edges).relu(), edges)
                torch.nn.functional.cross_entropy(out[train], labels[train]).backward()
                optimizer.step()
            with torch.no_grad():
                out = last(first(x, edges).relu(), edges)
            scores.append(float((out[test].argmax(1) == labels[test]).float().mean()))
        found[str(dtype).removeprefix("torch.")] = round(float(np.mean(scores)), 4)
    return found
