"""Tasks and where their batches come from: what `same_mathematics.py` compares."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


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
    num_train: int | None = None  # nodes an epoch takes, the same for all; none for all there are


TASKS = {
    "pubmed": Task(str(DATA / "planetoid" / "pubmed.npz"), batch_size=30, num_epochs=30),
    "coauthor_cs": Task(str(DATA / "coauthor_cs"), batch_size=512, num_epochs=3),
    "debian": Task(str(DATA / "debian_bookworm"), num_epochs=8),
    "generated_1m": Task(
        "generated:nodes=1e6,edges=25e6,features=128",
        fanouts=(15, 10),
        num_epochs=2,
        num_train=30 * 1024,
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
    from headrace.graph.sources.resolve import open_source

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
    splits = {name: np.asarray(ids, np.int64) for name, ids in seeds.splits.items()}
    if task.num_train is not None:
        splits["train"] = np.random.default_rng(0).permutation(splits["train"])[: task.num_train]
    return Whole(
        data,
        flatten(data, seeds.name),
        seeds.name,
        splits,
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
    from headrace.graph.format.partitioned_graph import open_graph
    from headrace.graph.sampler_worker.config import SamplerConfig
    from headrace.graph.sampler_worker.schedule import batches_per_epoch, sampler_batch_size
    from tests.support.sampler_processes import start_prefetcher

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
            seeds_per_iteration=sampler_batch_size(task.batch_size, NUM_SAMPLERS, s),
            batches_per_epoch=batches_per_epoch([len(part) for part in own], task.batch_size),
            fanouts=tuple((edge_type, task.fanouts) for edge_type in graph.edge_types),
        )
        for s in range(NUM_SAMPLERS)
    ]
    with start_prefetcher(configs, own, time.perf_counter) as feed:
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

    from headrace.graph.loader.neighbor_loader import LinkNeighborLoader as Ours

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


def test_negatives(whole: Whole, seed: int) -> np.ndarray:
    """What our loader draws beside the test links: as many pairs."""
    import torch

    from headrace.graph.loader.neighbor_loader import LinkNeighborLoader

    loader = LinkNeighborLoader(
        whole.folder,
        [1],
        edge_label_index=torch.from_numpy(whole.links),
        neg_sampling="binary",
        batch_size=4096,
        seed=seed,
    )
    pairs = [batch.n_id[batch.edge_label_index[:, batch.edge_label == 0]] for batch in loader]
    found: np.ndarray = torch.cat(pairs, 1).numpy()
    return found


def train_links(whole: Whole) -> np.ndarray:
    """Links of the graph in the direction in which they were given."""
    links: np.ndarray = whole.data.edge_index[:, : whole.data.num_edges // 2].numpy()
    return links
