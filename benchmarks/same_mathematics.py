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
Pubmed with 2 seeds. Tasks are written to the file one by one; `--into` skips those it has.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.apart import apart
from benchmarks.machine import describe_machine

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
NUM_PARTS, NUM_SAMPLERS = 4, 2
LEAST_POINTS = 0.5


@dataclass(frozen=True)
class Task:
    """What is trained, and how."""

    source: str
    model: str = "SAGE"
    width: int = 64
    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 1024
    num_epochs: int = 5
    lr: float = 0.01
    dropout: float = 0.5


TASKS = {
    "pubmed": Task(str(DATA / "planetoid" / "pubmed.npz"), batch_size=30, num_epochs=30),
    "coauthor_cs": Task(str(DATA / "coauthor_cs"), batch_size=512, num_epochs=3),
    "debian": Task(str(DATA / "debian_bookworm"), num_epochs=8),
    "generated_1m": Task(
        "generated:nodes=1e6,edges=25e6,features=128", fanouts=(15, 10), num_epochs=2
    ),
    "links_wn18rr": Task(str(DATA / "wn18rr"), "links", num_epochs=5, dropout=0.0),
    "rgcn_imdb": Task(str(DATA / "gds_hetero" / "imdb"), "RGCN", batch_size=256, num_epochs=5),
    "rgcn_debian": Task(str(DATA / "debian_bookworm"), "RGCN", num_epochs=3),
}


@dataclass
class Flat:
    """A graph or a batch whose nodes are counted in one row, seeds first."""

    x: Any
    edge_index: Any
    edge_type: Any
    y: Any
    n_id: Any = None
    batch_size: int = 0


@dataclass
class Whole:
    """A graph in memory: as PyG has it, with all types in one row, and in parts."""

    data: Any
    flat: Flat
    seed_type: str
    splits: dict[str, np.ndarray]
    links: np.ndarray
    folder: Path


def load(task: Task, folder: Path) -> Whole:
    """Read a graph; SAGE and links do not tell its edge types apart."""
    import torch
    from torch_geometric.data import Data, HeteroData

    from headrace.api.graph import partition
    from headrace.graph.sources.finding import open_source

    source = open_source(task.source, 0)
    ends = {
        table.edge_type: np.concatenate([np.stack(pair) for pair in table.chunks()], axis=1)
        for table in source.edges
    }
    columns = [
        {c.name: torch.from_numpy(np.array(c.read(0, table.num_nodes))) for c in table.columns}
        for table in source.nodes
    ]
    seeds = source.nodes[0]
    if task.model == "RGCN":
        data = HeteroData()
        for table, values in zip(source.nodes, columns, strict=True):
            for name, value in values.items():
                data[table.name][name] = value
        for edge_type, pair in ends.items():
            data[edge_type].edge_index = torch.from_numpy(pair.astype(np.int64))
    else:
        joined = np.concatenate(list(ends.values()), axis=1).astype(np.int64)
        if task.model == "links":  # messages go both ways
            joined = np.concatenate([joined, joined[::-1]], axis=1)
        data = Data(edge_index=torch.from_numpy(joined), num_nodes=seeds.num_nodes)
        for name, value in columns[0].items():
            data[name] = value
    partition(data, folder, NUM_PARTS, method="fennel" if source.num_edges > 10**7 else "auto")
    test = [np.stack([link.src, link.dst]) for link in source.links if link.split == "test"]
    return Whole(
        data,
        flatten(data, seeds.name),
        seeds.name,
        {name: np.asarray(ids, np.int64) for name, ids in seeds.splits.items()},
        np.concatenate(test, axis=1).astype(np.int64) if test else np.empty((2, 0), np.int64),
        folder,
    )


def flatten(data: Any, seed_type: str) -> Flat:
    """Count nodes of all types in one row; the type of the seeds comes first, so do they."""
    import torch

    if not hasattr(data, "node_types"):
        types = torch.zeros(data.edge_index.shape[1], dtype=torch.int64)
        n_id = data.n_id if "n_id" in data else None
        y = data.y if "y" in data else None
        size = data.batch_size if "batch_size" in data else 0
        return Flat(data.x, data.edge_index, types, y, n_id, size)
    names = [seed_type, *(name for name in sorted(data.node_types) if name != seed_type)]
    starts = dict(
        zip(names, np.cumsum([0, *(data[name].num_nodes for name in names)]).tolist(), strict=False)
    )
    pairs: list[Any] = []
    kinds: list[Any] = []
    for number, edge_type in enumerate(sorted(data.edge_types)):
        pair = data[edge_type].edge_index
        pairs.append(pair + torch.tensor([[starts[edge_type[0]]], [starts[edge_type[2]]]]))
        kinds.append(torch.full((pair.shape[1],), number))
    seeds = data[seed_type]
    return Flat(
        torch.cat([data[name].x for name in names]),
        torch.cat(pairs, dim=1),
        torch.cat(kinds),
        seeds.y,
        None,
        seeds.batch_size if "batch_size" in seeds else 0,
    )


class Plain:
    """Uniform sampling without replacement, the plain way: for each node and edge type the edges
    with the smallest of random numbers."""

    def __init__(self, whole: Whole, fanouts: tuple[int, ...], seed: int) -> None:
        flat = whole.flat
        src, dst = flat.edge_index.numpy()
        order = np.argsort(dst, kind="stable")
        self._src, self._type = src[order], flat.edge_type.numpy()[order]
        num_nodes = whole.data.num_nodes
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=num_nodes))])
        self._row = np.full(num_nodes, -1)
        self._fanouts, self._rng = fanouts, np.random.default_rng(seed)

    def sample(self, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nodes, edges between their rows, and types of the edges."""
        nodes = seeds
        self._row[seeds] = np.arange(len(seeds))
        pairs, types, begin = [], [], 0
        for fanout in self._fanouts:
            frontier, first_row, begin = nodes[begin:], begin, len(nodes)
            counts = self._starts[frontier + 1] - self._starts[frontier]
            at = np.repeat(self._starts[frontier] - np.cumsum(counts) + counts, counts)
            edges = at + np.arange(len(at))
            col = np.repeat(np.arange(len(frontier)), counts)
            order = np.lexsort((self._rng.random(len(edges)), self._type[edges], col))
            edges, col = edges[order], col[order]
            group = col * (self._type.max(initial=0) + 1) + self._type[edges]
            rank = np.arange(len(group)) - np.searchsorted(group, group)
            edges, col = edges[rank < fanout], col[rank < fanout]
            found = self._src[edges]
            new = np.unique(found[self._row[found] < 0])
            self._row[new] = len(nodes) + np.arange(len(new))
            nodes = np.concatenate([nodes, new])
            pairs.append(np.stack([self._row[found], first_row + col]))
            types.append(self._type[edges])
        self._row[nodes] = -1
        return nodes, np.concatenate(pairs, axis=1), np.concatenate(types)

    def shuffled(self, num: int, size: int) -> Iterator[np.ndarray]:
        """Positions of all, in batches."""
        order = self._rng.permutation(num)
        yield from (order[i : i + size] for i in range(0, num, size))


Epochs = Iterator[Iterator[Any]]


def plain_nodes(whole: Whole, task: Task, seed: int) -> Epochs:
    import torch

    plain, train = Plain(whole, task.fanouts, seed), whole.splits["train"]

    def epoch() -> Iterator[Flat]:
        for at in plain.shuffled(len(train), task.batch_size):
            nodes, pairs, types = plain.sample(train[at])
            n_id = torch.from_numpy(nodes)
            y = whole.flat.y[n_id[: len(at)]]
            edges, kinds = torch.from_numpy(pairs), torch.from_numpy(types)
            yield Flat(whole.flat.x[n_id], edges, kinds, y, n_id, len(at))

    while True:
        yield epoch()


def pyg_nodes(whole: Whole, task: Task, seed: int) -> Epochs:
    import torch
    from torch_geometric.loader import NeighborLoader

    train = torch.from_numpy(whole.splits["train"])
    loader = NeighborLoader(
        whole.data,
        list(task.fanouts),
        train if task.model != "RGCN" else (whole.seed_type, train),
        batch_size=task.batch_size,
        shuffle=True,
    )
    while True:
        yield (flatten(batch, whole.seed_type) for batch in loader)


def our_nodes(whole: Whole, task: Task, seed: int) -> Epochs:
    from headrace.graph.feeding.config import SamplerConfig
    from headrace.graph.feeding.feed import start_feed
    from headrace.graph.feeding.scheduling import batches_per_epoch, share_of
    from headrace.graph.opening import open_graph

    # Samplers have ranges of seeds as they lie in the parts, not a random half of them.
    graph = open_graph(whole.folder)
    new = np.sort(graph.to_new(whole.seed_type, whole.splits["train"]))
    own = [graph.to_original(whole.seed_type, part) for part in np.array_split(new, NUM_SAMPLERS)]
    configs = [
        SamplerConfig(
            task=f"sampler {s}",
            graph=whole.folder,
            node_type=whole.seed_type,
            seeds=Path("given"),
            seed=seed,
            share=share_of(task.batch_size, NUM_SAMPLERS, s),
            batches_per_epoch=batches_per_epoch([len(part) for part in own], task.batch_size),
            fanouts=tuple((edge_type, task.fanouts) for edge_type in graph.edge_types),
        )
        for s in range(NUM_SAMPLERS)
    ]
    with start_feed(configs, own, time.perf_counter) as feed:
        for _ in range(task.num_epochs):
            yield (flatten(batch, whole.seed_type) for batch in feed)


def plain_links(whole: Whole, task: Task, seed: int) -> Epochs:
    import torch
    from torch_geometric.data import Data

    plain, num_nodes = Plain(whole, task.fanouts, seed), whole.data.num_nodes
    links = train_links(whole)

    def epoch() -> Iterator[Any]:
        for at in plain.shuffled(links.shape[1], task.batch_size):
            false = plain._rng.integers(0, num_nodes, (2, len(at)))
            asked = np.concatenate([links[:, at], false], axis=1)
            seeds, rows = np.unique(asked, return_inverse=True)
            nodes, pairs, _ = plain.sample(seeds)
            yield Data(
                n_id=torch.from_numpy(nodes),
                edge_index=torch.from_numpy(pairs),
                edge_label_index=torch.from_numpy(rows.reshape(2, -1)),
                edge_label=torch.cat([torch.ones(len(at)), torch.zeros(len(at))]),
                num_nodes=len(nodes),
            )

    while True:
        yield epoch()


def loaded_links(whole: Whole, task: Task, seed: int, is_ours: bool) -> Epochs:
    import torch
    from torch_geometric.loader import LinkNeighborLoader as Theirs
    from torch_geometric.sampler import NegativeSampling

    from headrace.graph.loading.loaders import LinkNeighborLoader as Ours

    settings: dict[str, Any] = {
        "edge_label_index": torch.from_numpy(train_links(whole)),
        "neg_sampling": NegativeSampling("binary", 1.0),
        "batch_size": task.batch_size,
        "shuffle": True,
    }
    loader: Any
    if is_ours:
        loader = Ours(whole.folder, list(task.fanouts), seed=seed, **settings)
    else:
        loader = Theirs(whole.data, list(task.fanouts), **settings)
    while True:
        yield iter(loader)


def train_links(whole: Whole) -> np.ndarray:
    """Links of the graph in the direction in which they were given."""
    links: np.ndarray = whole.data.edge_index[:, : whole.data.num_edges // 2].numpy()
    return links


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
                more = (batch.edge_type,) if task.model == "RGCN" else ()
                out = model(batch.x, batch.edge_index, *more)[: batch.batch_size]
                loss = cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
            del batch
    getattr(epochs, "close", lambda: None)()
    model.eval()
    with torch.no_grad():
        return link_points(whole, model) if task.model == "links" else points(whole, task, model)


def by_destination(whole: Whole) -> Any:
    """All edges as a sparse matrix, which needs no memory per edge and feature."""
    import torch

    src, dst = whole.flat.edge_index
    order = torch.argsort(dst, stable=True)
    num = whole.data.num_nodes
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.bincount(dst, minlength=num)])
    ones = torch.ones(len(src))
    return torch.sparse_csr_tensor(starts.cumsum(0), src[order], ones, size=(num, num))


def points(whole: Whole, task: Task, model: Any) -> float:
    """Per cent of the test nodes whose class was found, by a pass over the whole graph."""
    import torch

    flat = whole.flat
    if task.model == "RGCN":
        out = model(flat.x, flat.edge_index, flat.edge_type)
    else:
        out = model(flat.x, by_destination(whole))
    test = torch.from_numpy(whole.splits["test"])
    return 100 * float((out[test].argmax(1) == flat.y[test]).float().mean())


def link_points(whole: Whole, model: Any) -> float:
    """100 times the share of pairs in which a test link is above a random one."""
    import torch

    rows = model(torch.arange(whole.data.num_nodes), by_destination(whole))
    false = np.random.default_rng(0).integers(0, whole.data.num_nodes, whole.links.shape)
    scores = []
    for links in (whole.links, false):
        src, dst = torch.from_numpy(links)
        scores.append((rows[src] * rows[dst]).sum(-1).numpy())
    good, bad = scores
    bad = np.sort(bad)
    below, at_most = (np.searchsorted(bad, good, side) for side in ("left", "right"))
    return float(100 * (below + at_most).mean() / (2 * len(bad)))


def has_pyg_sampler() -> bool:
    from torch_geometric import typing

    return bool(typing.WITH_TORCH_SPARSE or typing.WITH_PYG_LIB)


def compare(task: Task, num_seeds: int, num_threads: int) -> dict[str, Any]:
    """Train one task with both sources of batches, taking turns."""
    import warnings

    import torch

    warnings.filterwarnings("ignore", "Sparse ")  # torch announces that they are new
    torch.set_num_threads(num_threads)
    found: dict[str, list[float]] = {"ours": [], "reference": []}
    is_pyg = has_pyg_sampler()
    sources: dict[str, Callable[[Whole, Task, int], Epochs]]
    if task.model == "links":
        theirs = partial(loaded_links, is_ours=False) if is_pyg else plain_links
        sources = {"ours": partial(loaded_links, is_ours=True), "reference": theirs}
    else:
        sources = {"ours": our_nodes, "reference": pyg_nodes if is_pyg else plain_nodes}
    with tempfile.TemporaryDirectory() as scratch:
        whole = load(task, Path(scratch) / "parts")
        began = time.perf_counter()
        for seed in range(num_seeds):
            for name, source in sources.items():
                torch.manual_seed(1000 + seed)  # of what PyG draws
                found[name].append(round(train(whole, task, seed, source(whole, task, seed)), 3))
    reference = "PyG's own loader" if is_pyg else "uniform sampling with numpy"
    return verdict(found["ours"], found["reference"]) | {
        "reference": reference,
        "points": found,
        "seconds": round(time.perf_counter() - began, 1),
        "task": asdict(task) | {"source": Path(task.source).name},
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
    if args.into and args.output and args.output.exists():
        document = json.loads(args.output.read_text())
    document["commands"].append("python benchmarks/same_mathematics.py " + " ".join(sys.argv[1:]))
    document |= {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": describe_machine()}
    for name in names:
        if name in document["tasks"] and not args.only:
            continue
        task = replace(TASKS[name], num_epochs=args.epochs or TASKS[name].num_epochs)
        found = apart(compare, task, 2 if args.quick else args.seeds, args.threads)
        document["tasks"][name] = found
        if not args.json:
            print(f"{name}: {json.dumps(found)}", flush=True)
        if args.output:
            args.output.parent.mkdir(parents=True, exist_ok=True)
            args.output.write_text(json.dumps(document, indent=1) + "\n")
    document["all_within"] = all(found["is_within"] for found in document["tasks"].values())
    if args.output:
        args.output.write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
