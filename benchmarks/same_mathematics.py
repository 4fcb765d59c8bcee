"""Train with our batches and with PyG's own; say whether the models are equally good.

    python benchmarks/same_mathematics.py --output FILE --into
    python benchmarks/same_mathematics.py --quick --json

Each task is trained with the same model, seeds and epochs from two sources of batches. Ours are the
asynchronous pipeline with two sampler processes over a graph in four parts, for links our loader
over the same parts. The reference is PyG's own `NeighborLoader` if it has a sampler (torch-sparse
or pyg-lib: use a Python that has one), else a plain loop that draws uniformly with numpy; the
result says which. Both are judged by one pass over the whole graph. Points are per cent of
accuracy, for links of the area under the curve.

The last line is one JSON object: per task the points of every seed, the difference of the means,
its standard error, and whether it is at most max(0.5 points, 2 standard errors). `--quick` is
Pubmed with 2 seeds. Tasks are written to the file one by one; `--into` skips those it has, and
continues one that was stopped, whose seeds are in a file beside it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.apart import apart
from benchmarks.batch_sources import (
    TASKS,
    Epochs,
    Task,
    Whole,
    load,
    loaded_links,
    our_nodes,
    plain_links,
    plain_nodes,
    pyg_nodes,
    test_negatives,
)
from benchmarks.machine import describe_machine

LEAST_POINTS = 0.5


def make_model(whole: Whole, task: Task) -> Any:
    import torch
    from torch_geometric.nn import GraphSAGE, RGCNConv

    num_layers = len(task.fanouts)
    if task.model == "links":

        class Links(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rows = torch.nn.Embedding(whole.data.num_nodes, task.width)
                self.layers = GraphSAGE(task.width, task.width, num_layers)

            def forward(self, n_id: Any, edges: Any) -> Any:
                return self.layers(self.rows(n_id), edges)

        return Links()
    num_features, num_classes = whole.flat.x.shape[1], int(whole.flat.y.max()) + 1
    if task.model == "SAGE":
        return GraphSAGE(num_features, task.width, num_layers, num_classes, dropout=task.dropout)
    widths = [num_features, *[task.width] * (num_layers - 1), num_classes]
    num_types = int(whole.flat.edge_type.max()) + 1

    class Rgcn(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(
                RGCNConv(a, b, num_types) for a, b in pairwise(widths)
            )

        def forward(self, x: Any, edges: Any, types: Any) -> Any:
            for layer in self.layers[:-1]:
                x = layer(x, edges, types).relu()
                x = torch.nn.functional.dropout(x, task.dropout, self.training)
            return self.layers[-1](x, edges, types)

    return Rgcn()


def train(whole: Whole, task: Task, seed: int, epochs: Epochs) -> float:
    """Points of a model on the test set."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

    torch.manual_seed(seed)
    model = make_model(whole, task)
    optimizer = torch.optim.Adam(model.parameters(), lr=task.lr)
    for _ in range(task.num_epochs):
        model.train()
        for batch in next(epochs):
            optimizer.zero_grad()
            if task.model == "links":
                rows = model(batch.n_id, batch.edge_index)[batch.edge_label_index]
                loss = binary_cross_entropy_with_logits(
                    (rows[0] * rows[1]).sum(-1), batch.edge_label
                )
            else:
                edges: list[Any] = [batch.edge_index, batch.edge_type]
                if task.model == "SAGE":
                    edges = [by_destination(batch.edge_index, len(batch.x))]
                out = model(batch.x, *edges)[: batch.batch_size]
                loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            del batch
    getattr(epochs, "close", lambda: None)()
    model.eval()
    with torch.no_grad():
        if task.model == "links":
            return link_points(whole, model, seed)
        return points(whole, task, model)


def by_destination(edge_index: Any, num_nodes: int) -> Any:
    """Edges as a sparse matrix, which needs no memory per edge and feature."""
    import torch

    src, dst = edge_index
    order = torch.argsort(dst, stable=True)
    counts = torch.bincount(dst, minlength=num_nodes)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts]).cumsum(0)
    ones = torch.ones(len(src))
    return torch.sparse_csr_tensor(starts, src[order], ones, size=(num_nodes, num_nodes))


def points(whole: Whole, task: Task, model: Any) -> float:
    """Per cent of the test nodes whose class was found, by a pass over the whole graph."""
    import torch

    flat = whole.flat
    if task.model == "RGCN":
        out = model(flat.x, flat.edge_index, flat.edge_type)
    else:
        out = model(flat.x, by_destination(flat.edge_index, whole.data.num_nodes))
    test = torch.from_numpy(whole.splits["test"])
    return 100 * float((out[test].argmax(1) == flat.y[test]).float().mean())


def link_points(whole: Whole, model: Any, seed: int) -> float:
    """100 times the share of pairs in which a test link is above one that our loader made up."""
    import torch

    num_nodes = whole.data.num_nodes
    rows = model(torch.arange(num_nodes), by_destination(whole.flat.edge_index, num_nodes))
    scores = []
    for links in (whole.links, test_negatives(whole, seed)):
        src, dst = torch.from_numpy(links)
        scores.append((rows[src] * rows[dst]).sum(-1).numpy())
    good, bad = scores
    bad = np.sort(bad)
    below, at_most = (np.searchsorted(bad, good, side) for side in ("left", "right"))
    return float(100 * (below + at_most).mean() / (2 * len(bad)))


def has_pyg_sampler() -> bool:
    from torch_geometric import typing

    return bool(typing.WITH_TORCH_SPARSE or typing.WITH_PYG_LIB)


def compare(
    task: Task, num_seeds: int, num_threads: int, notes: Path | None = None
) -> dict[str, Any]:
    """Train one task with both sources of batches, taking turns.

    Points of a seed are noted in a file once both have them, and not made again if they are there.
    """
    import warnings

    import torch

    warnings.filterwarnings("ignore", "Sparse ")  # torch announces that they are new
    torch.set_num_threads(num_threads)
    described = asdict(task) | {"source": Path(task.source).name, "fanouts": list(task.fanouts)}
    found: dict[str, list[float]] = {"ours": [], "reference": []}
    seconds = 0.0
    if notes is not None and notes.exists():
        noted = json.loads(notes.read_text())
        if noted["task"] == described:
            found, seconds = noted["points"], noted["seconds"]
    is_pyg = has_pyg_sampler()
    sources: dict[str, Callable[[Whole, Task, int], Epochs]]
    if task.model == "links":
        theirs = partial(loaded_links, is_ours=False) if is_pyg else plain_links
        sources = {"ours": partial(loaded_links, is_ours=True), "reference": theirs}
    else:
        sources = {"ours": our_nodes, "reference": pyg_nodes if is_pyg else plain_nodes}
    with tempfile.TemporaryDirectory() as scratch:
        whole = load(task, Path(scratch) / "parts")
        for seed in range(len(found["ours"]), num_seeds):
            began = time.perf_counter()
            for name, source in sources.items():
                torch.manual_seed(1000 + seed)  # of what PyG draws
                found[name].append(round(train(whole, task, seed, source(whole, task, seed)), 3))
            seconds += time.perf_counter() - began
            if notes is not None:
                made = {"task": described, "points": found, "seconds": seconds}
                notes.write_text(json.dumps(made))
    reference = "PyG's own loader" if is_pyg else "uniform sampling with numpy"
    return verdict(found["ours"], found["reference"]) | {
        "reference": reference,
        "points": found,
        "seconds": round(seconds, 1),
        "task": described,
    }


def verdict(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Whether two means differ by no more than they may."""
    means = [float(np.mean(side)) for side in (ours, theirs)]
    variances = [float(np.var(side, ddof=1)) if len(side) > 1 else 0.0 for side in (ours, theirs)]
    error = float(np.sqrt(sum(variances) / len(ours)))
    allowed = max(LEAST_POINTS, 2 * error)
    difference = means[0] - means[1]
    return {
        "ours": round(means[0], 3),
        "theirs": round(means[1], 3),
        "difference": round(difference, 3),
        "standard_error": round(error, 3),
        "allowed": round(allowed, 3),
        "is_within": abs(difference) <= allowed,
    }


def main() -> int:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="Pubmed with 2 seeds")
    parser.add_argument("--json", action="store_true", help="print only the JSON object")
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(TASKS)}")
    parser.add_argument("--seeds", type=int, default=10, help="how many of each (10)")
    parser.add_argument("--epochs", type=int, help="instead of each task's own number, to try")
    parser.add_argument("--threads", type=int, default=1, help="of the trainer (1)")
    parser.add_argument("--output", type=Path, help="also write the JSON object to a file")
    parser.add_argument("--into", action="store_true", help="keep what the output file has already")
    args = parser.parse_args()
    names = ["pubmed"] if args.quick else args.only.split(",") if args.only else list(TASKS)
    document: dict[str, Any] = {"tasks": {}, "commands": []}
    if args.output:
        args.output.parent.mkdir(parents=True, exist_ok=True)
    if args.into and args.output and args.output.exists():
        document = json.loads(args.output.read_text())
    document["commands"].append("python benchmarks/same_mathematics.py " + " ".join(sys.argv[1:]))
    document |= {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": describe_machine()}
    for name in names:
        if name in document["tasks"] and not args.only:
            continue
        task = replace(TASKS[name], num_epochs=args.epochs or TASKS[name].num_epochs)
        notes = args.output and args.into and args.output.with_suffix(f".{name}")
        found = apart(compare, task, 2 if args.quick else args.seeds, args.threads, notes or None)
        document["tasks"][name] = found
        if not args.json:
            print(f"{name}: {json.dumps(found)}", flush=True)
        if args.output:
            args.output.write_text(json.dumps(document, indent=1) + "\n")
        if notes:
            notes.unlink(missing_ok=True)
    document["all_within"] = all(found["is_within"] for found in document["tasks"].values())
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
