"""Infer for all nodes, layer by layer: ours with activations on disk, PyG's in memory.

    python benchmarks/inference_speed.py --json --sparse-python PYTHON --graph FOLDER
    python benchmarks/inference_speed.py --quick --json

GraphSAGE 2 x 64 on the generated graph with 1,000,000 nodes, 25,000,000 edges and 128 features;
`--quick` on a small one. Ours is `headrace.infer` from opening the graph to the closed Parquet file
with all outputs. Theirs is `BasicGNN.inference` with a `NeighborLoader` of all neighbours, data in
memory, nothing written, with the best of some batch sizes. PyG's own loader needs torch-sparse or
pyg-lib (`--sparse-python`: a Python that has one); else batches are those of our loader, whose
sampler is faster. Both have all cores; files are in the page cache.

The last line is one JSON object:

- `ratio`: seconds of theirs over those of ours; `seconds` has both;
- `peak_bytes`: memory of our process that no file backs, looked at every 20 ms, with Python and
  torch; of theirs the largest resident size;
- `max_difference`: of all outputs, ours and theirs;
- `real_graphs`: the same of models on real graphs in 4 parts, to the model on the whole graph.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.apart import Stages, apart, own_bytes
from benchmarks.batch_sources import TASKS, load
from benchmarks.machine import describe_machine
from benchmarks.training_speed import GRAPH, ROOT, Model, asking, hand_over

QUICK_GRAPH = "generated:nodes=2e4,edges=5e5,features=128"
MODEL = (128, 64, 2, 16)
EDGE = ("node", "to", "node")
BATCH_SIZES = {False: (1024, 4096), True: (1024,)}
REAL: dict[bool, dict[str, tuple[str, ...]]] = {
    False: {
        "pubmed": ("sage", "gcn", "gat"),
        "coauthor_cs": ("sage", "gcn", "gat"),
        "rgcn_imdb": ("rgcn",),
    },
    True: {},
}


def here(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function; `apart` does so in a fresh process."""
    return function(*arguments)


def whole_inference(
    folder: Path, scratch: Path, sparse_python: str | None, is_quick: bool = False
) -> dict[str, Any]:
    """Compare on one graph of one part, each side in a process of its own unless it is quick.

    Args:
        folder: The graph.
        scratch: Folder for files; made here.
        sparse_python: A Python whose PyG has a sampler; none for our loader instead.
        is_quick: Whether once is enough.
    """
    run = here if is_quick else apart
    scratch.mkdir()
    rival = scratch / "rival"
    hand_over(folder, rival, Model(MODEL[1], (-1,), 0, 0, 0, 0), bool(sparse_python))
    threads = os.cpu_count() or 1
    settings = {"model": MODEL, "threads": threads}
    (rival / "settings.json").write_text(json.dumps(settings))
    run(make_weights, rival / "model.pt")
    rounds = [
        run(own_inference, folder, rival / "model.pt", scratch / "out", threads)
        for _ in range(1 if is_quick else 3)
    ]
    ours = sorted(rounds, key=lambda each: each["seconds"])[len(rounds) // 2]
    theirs: dict[int, dict[str, float]] = {}
    if sparse_python:
        command = [sparse_python, str(ROOT / "benchmarks" / "rivals.py"), "inference", str(rival)]
        with asking(command) as ask:
            theirs = {size: ask(size) for size in BATCH_SIZES[is_quick]}
    else:
        theirs = {
            size: run(looped_inference, folder, rival, size, threads)
            for size in BATCH_SIZES[is_quick]
        }
    best = min(theirs, key=lambda size: theirs[size]["seconds"])
    reference = "PyG's own loader" if sparse_python else "PyG's inference with our loader"
    return {
        "ratio": round(theirs[best]["seconds"] / ours["seconds"], 2),
        "seconds": {
            "ours": round(ours["seconds"], 2),
            "theirs": round(theirs[best]["seconds"], 2),
        },
        "seconds_by_batch_size": {n: round(each["seconds"], 2) for n, each in theirs.items()},
        "peak_bytes": {
            "ours": max(each["peak_bytes"] for each in rounds),
            "ours_before": ours["before_bytes"],
            "theirs": int(theirs[best]["peak_bytes"]),
        },
        "max_difference": difference(scratch / "out" / "nodes.parquet", rival / "out.npy"),
        "stages": ours["stages"],
        "reference": reference,
        "threads": threads,
        "rounds": len(rounds),
        "num_nodes": ours["num_nodes"],
        "model": "GraphSAGE 2 x 64",
    }


def make_weights(path: Path) -> None:
    import torch
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(0)
    torch.save(GraphSAGE(*MODEL).state_dict(), path)


def own_inference(folder: Path, weights: Path, output: Path, threads: int) -> dict[str, Any]:
    import torch
    from torch_geometric.nn import GraphSAGE

    import headrace

    torch.set_num_threads(threads)
    model = GraphSAGE(*MODEL)
    model.load_state_dict(torch.load(weights))
    for path in folder.rglob("*.bin"):
        path.read_bytes()  # into the page cache
    before_bytes = own_bytes()
    stages = Stages()
    begin = time.perf_counter()
    done = headrace.infer(model, folder, output, write=["prediction", "output"], watcher=stages)
    seconds = time.perf_counter() - begin
    stages.close()
    return {
        "seconds": seconds,
        "peak_bytes": stages.peak_bytes,
        "before_bytes": before_bytes,
        "stages": stages.seconds,
        "num_nodes": done.num_nodes["node"],
    }


def looped_inference(folder: Path, rival: Path, batch_size: int, threads: int) -> dict[str, float]:
    """What `BasicGNN.inference` does, with batches of our loader."""
    import torch
    from torch_geometric.nn import GraphSAGE

    import headrace

    torch.set_num_threads(threads)
    model = GraphSAGE(*MODEL).eval()
    model.load_state_dict(torch.load(rival / "model.pt"))
    loader = headrace.NeighborLoader(folder, [-1], batch_size=batch_size)
    rows = torch.from_numpy(np.array(headrace.open_graph(folder).part(0).column("node", "x")))
    next(iter(loader))
    begin = time.perf_counter()
    for layer in range(MODEL[2]):
        made = [
            model.inference_per_layer(layer, rows[each.n_id], each.edge_index, each.batch_size)
            for each in loader
        ]
        rows = torch.cat(made)
    seconds = time.perf_counter() - begin
    np.save(rival / "out.npy", rows.numpy())
    return {"seconds": seconds, "peak_bytes": float(own_bytes())}


def difference(table: Path, rows: Path) -> float:
    """The largest, of all outputs; they are not all the same."""
    import pyarrow.parquet as pq

    theirs = np.load(rows)
    read = pq.read_table(table, columns=["output"])["output"].combine_chunks()
    ours = read.flatten().to_numpy().reshape(theirs.shape)
    assert theirs.std() > 1e-3, "nothing to compare"
    return float(np.abs(ours - theirs).max())


def real_graphs(is_quick: bool) -> dict[str, Any]:
    """Largest differences to the model on the whole graph, by graph and model."""
    found: dict[str, Any] = {}
    for name, models in REAL[is_quick].items():
        if not Path(TASKS[name].source).exists():
            found[name] = f"{TASKS[name].source} is not there"
            continue
        found[name] = (here if is_quick else apart)(real_graph, name, models)
    return found


def real_graph(name: str, models: tuple[str, ...]) -> dict[str, float]:
    import torch

    import headrace
    from headrace.training.models import make_model

    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        whole = load(TASKS[name], Path(scratch) / "parts")
        for kind in models:
            torch.manual_seed(0)
            if kind == "rgcn":
                data = whole.data
                widths = {each: data[each].x.shape[1] for each in data.node_types}
                model = make_model(kind, widths, 64, 16, edge_types=data.edge_types).eval()
                given: tuple[Any, ...] = (data.x_dict, data.edge_index_dict)
            else:
                model = make_model(kind, whole.flat.x.shape[1], 64, 16).eval()
                given = (whole.flat.x, whole.flat.edge_index)
            with torch.no_grad():
                expected = model(*given)
            out = Path(scratch) / kind
            node_type = whole.seed_type if kind == "rgcn" else None
            done = headrace.infer(
                model,
                whole.folder,
                out,
                write=["output"],
                node_type=node_type,
                memory_bytes=1 << 25,
            )
            rows = expected[node_type] if node_type else expected
            np.save(out / "expected.npy", rows.numpy())
            (table,) = done.tables.values()
            found[kind] = difference(table, out / "expected.npy")
    return found


def measure(
    graph: Path | None, sparse_python: str | None, is_quick: bool, scratch: Path
) -> dict[str, Any]:
    """Everything; the graph is made if there is none.

    If it is quick, call it `apart`: nothing of it has a process of its own.
    """
    run = here if is_quick else apart
    if graph is None:
        graph = scratch / "graph"
        run(make_graph, QUICK_GRAPH if is_quick else GRAPH, graph)
    found = whole_inference(graph, scratch / "inference", sparse_python, is_quick)
    return found | {"real_graphs": real_graphs(is_quick)}


def make_graph(source: str, folder: Path) -> None:
    import headrace

    headrace.partition(source, folder, 1, method="range")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small graph, once")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--sparse-python", help="a Python with torch-sparse and PyG")
    parser.add_argument("--graph", type=Path, help="the graph in one part, if it is there already")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    args = parser.parse_args()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        run = apart if args.quick else here
        found = run(measure, args.graph, args.sparse_python, args.quick, Path(scratch))
    found["elapsed_s"] = round(time.perf_counter() - began, 1)
    found["machine"] = describe_machine()
    if not args.json:
        for name, value in found.items():
            print(f"{name}: {value}")
    text = json.dumps(found)
    if args.output:
        args.output.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
