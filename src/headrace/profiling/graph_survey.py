"""Batches sampled from a partitioned graph: what they contain, and which rows they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.traffic import PLAIN, Traffic
from headrace.graph.build.encoding_choice import LOSSY, choose_form, quantised
from headrace.graph.format.manifest import FEATURES, ColumnInfo, SplitName
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.sampler_worker.feature_cache import memory_for_rows
from headrace.graph.sampling.hop import Hop, HopRequest, LocalSource, Rule
from headrace.graph.sampling.local_edges import open_edge_parts
from headrace.graph.sampling.neighbor_sampler import BatchKey, FanOuts, HeteroSampled, Sampler
from headrace.graph.schema import Column

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Cache sizes, as fractions of all rows of the graph."""

_NUM_ROWS = 10_000
"""Rows to estimate the form of features from."""

_NUM_ROUNDS = 2
_FEWEST_BATCHES, _ENOUGH_BATCHES, _MOST_NODES = 8, 50, 500_000
"""A round of the prediction of hit rates: an epoch if it is longer than `_ENOUGH_BATCHES`, but at
most about so many sampled nodes."""


def split_seeds(graph: PartitionedGraph, split: SplitName) -> tuple[str, list[np.ndarray]]:
    """First node type with splits, and new ids of the seeds of a split by partition."""
    for node in graph.manifest.nodes:
        if split in node.splits:
            return node.name, [
                np.asarray(
                    graph.part(part).start(node.name) + graph.part(part).split(node.name, split),
                    np.int64,
                )
                for part in range(graph.num_parts)
            ]
    raise SpecError(
        f"the graph has no {split} split", "partition a graph with masks, or profile a run"
    )


class Survey:
    """Samples batches and counts what they contain.

    Attributes:
        seeds: New ids of the split's seeds by partition.
        counted: Nodes, edges, bytes from stores and bytes of the last sub-batch.
        by_store: Bytes of the last sub-batch by store.
        rows: New ids of the last sub-batch's nodes, by node type.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        num_neighbors: FanOuts,
        split: SplitName = "train",
        edge_ids: bool = False,
        seed: int = 0,
        traffic: Traffic = PLAIN,
    ) -> None:
        self._graph, self._num_neighbors, self._seed = graph, num_neighbors, seed
        self._name, self.seeds = split_seeds(graph, split)
        self._source = LocalSource(open_edge_parts(graph))
        num_nodes = {each: graph.num_nodes_of(each) for each in graph.node_types}
        offsets = {each: graph.offsets(each) for each in graph.node_types}
        rule = Rule(edge_ids=edge_ids, far=traffic.far)
        self._sampler = Sampler(self, num_nodes, graph.edge_types, rule, offsets)
        self.columns = {
            node.name: [
                _stored(graph, node.name, column, traffic.features) for column in node.columns
            ]
            for node in graph.manifest.nodes
        }
        self.counted: Sequence[float] = ()
        self.by_store = np.zeros(graph.num_parts)
        self.rows: dict[str, np.ndarray] = {}

    def hop(self, request: HopRequest) -> Hop:
        """Sample a hop, and count the replies."""
        found = self._source.hop(request)
        ids = 2 if len(found.edges) else 1
        owner = self._graph.owner(request.edge_type[2], request.nodes)
        self.by_store += np.bincount(
            owner, weights=8.0 * (1 + ids * found.counts), minlength=self._graph.num_parts
        )
        return found

    def sample(self, seeds: np.ndarray, epoch: int, batch: int) -> None:
        """Sample one batch and count it."""
        self.by_store = np.zeros(self._graph.num_parts)
        key = BatchKey(self._seed, epoch, batch)
        out = self._sampler.sample_hetero({self._name: seeds}, self._num_neighbors, key)
        row_bytes = self._add_rows(out)
        num_nodes = sum(len(ids) for ids in out.node.values())
        num_edges = sum(len(row) for row in out.row.values())
        store_bytes = float(self.by_store.sum())
        # Sub-batches have an original id per node, and two rows and perhaps an id per edge.
        per_edge = 16 if out.edge is None else 24
        batch_bytes = row_bytes + 8 * num_nodes + per_edge * num_edges
        self.counted = (num_nodes, num_edges, store_bytes, batch_bytes)
        self.rows = dict(out.node)

    def _add_rows(self, out: HeteroSampled) -> float:
        """Add features of all nodes and labels of the seeds; returns their size in the batch."""
        row_bytes = 0.0
        for name, columns in self.columns.items():
            ids = out.node[name]
            own = np.bincount(self._graph.owner(name, ids), minlength=self._graph.num_parts)
            first = ids[: out.num_sampled_nodes[name][0]]
            seeds = np.bincount(self._graph.owner(name, first), minlength=self._graph.num_parts)
            for column in columns:
                rows = own if column.shape else seeds
                if column.shape or name == self._name:
                    self.by_store += rows * column.row_bytes
                    row_bytes += float(rows.sum()) * column.row_bytes
        return row_bytes


@dataclass(frozen=True)
class CacheCurve:
    """Effect of a cache in each sampler whose seeds are from one partition.

    Attributes:
        sizes: Memory of the cache, ascending; the first is 0.
        hit_rates: Share of the rows of other partitions that it has, shape (partition, size).
        savings: Share of the bytes of other partitions that it saves, same shape.
        own_savings: Share of the bytes of the seeds' own partition that it saves if the sampler is
            on another machine, so that all rows are cached; same shape.
    """

    sizes: np.ndarray
    hit_rates: np.ndarray
    savings: np.ndarray
    own_savings: np.ndarray

    def savings_at(self, num_bytes: float) -> np.ndarray:
        """Share of bytes that a cache of this size saves, by partition."""
        return np.array([np.interp(num_bytes, self.sizes, own) for own in self.savings])

    def own_savings_at(self, num_bytes: float) -> np.ndarray:
        """Share of the bytes of the seeds' own partition, if its machine is another one."""
        return np.array([np.interp(num_bytes, self.sizes, own) for own in self.own_savings])

    def hit_rate_at(self, num_bytes: float, weights: np.ndarray) -> float:
        """Mean hit rate of a cache of this size, with weights of the partitions."""
        rates = [np.interp(num_bytes, self.sizes, own) for own in self.hit_rates]
        return float(np.average(rates, weights=weights))


def sample_cache(
    graph: PartitionedGraph,
    num_neighbors: FanOuts,
    seeds_per_sampler: float,
    *,
    traffic: Traffic = PLAIN,
    seed: int = 0,
) -> CacheCurve:
    """Predict the hit rates of caches by sampling two rounds of batches of each partition.

    In each of them, those rows are cached that are requested most often in the other.
    """
    survey = Survey(graph, num_neighbors, seed=seed, traffic=traffic)
    cached = {
        name: [column for column in columns if column.shape]
        for name, columns in survey.columns.items()
    }
    num_nodes = {name: graph.num_nodes_of(name) for name in cached}
    sizes = [
        sum(
            memory_for_rows(column, num_nodes[name], int(fraction * num_nodes[name]))
            for name, columns in cached.items()
            for column in columns
        )
        for fraction in FRACTIONS
    ]
    hit_rates = np.zeros((graph.num_parts, 1 + len(FRACTIONS)))
    savings, own_savings = np.zeros_like(hit_rates), np.zeros_like(hit_rates)
    rng = np.random.default_rng(seed)
    for part, seeds in enumerate(survey.seeds):
        size = min(len(seeds), max(1, round(seeds_per_sampler)))
        if not size:
            continue
        num_batches = max(len(seeds) // size, _ENOUGH_BATCHES)
        counts = {name: np.zeros((_NUM_ROUNDS, num), np.int64) for name, num in num_nodes.items()}
        away_bytes = own_bytes = 0.0
        for number in range(_NUM_ROUNDS):
            shuffled = np.resize(rng.permutation(seeds), (num_batches, size))
            num_sampled = 0
            for batch, chosen in enumerate(shuffled):
                survey.sample(chosen, number, batch)
                away_bytes += survey.by_store.sum() - survey.by_store[part]
                own_bytes += survey.by_store[part]
                for name, ids in survey.rows.items():
                    counts[name][number, ids] += 1
                num_sampled += int(survey.counted[0])
                if batch + 1 >= _FEWEST_BATCHES and num_sampled >= _MOST_NODES:
                    num_batches = batch + 1
                    break
        for at, fraction in enumerate(FRACTIONS, start=1):
            away_rows = away_hits = away_saved = own_saved = 0.0
            for name, columns in cached.items():
                own = graph.owner(name, np.arange(num_nodes[name])) == part
                away = np.where(own, 0, counts[name])
                hits, _ = _hits(away, fraction, own)
                _, own_hits = _hits(counts[name], fraction, own)
                row_bytes = sum(column.row_bytes for column in columns)
                away_rows += float(away.sum()) * len(columns)
                away_hits += hits * len(columns)
                away_saved += hits * row_bytes
                own_saved += own_hits * row_bytes
            hit_rates[part, at] = away_hits / max(away_rows, 1.0)
            savings[part, at] = away_saved / max(away_bytes, 1.0)
            own_savings[part, at] = own_saved / max(own_bytes, 1.0)
    return CacheCurve(np.array([0.0, *sizes]), hit_rates, savings, own_savings)


def _hits(counts: np.ndarray, fraction: float, is_own: np.ndarray) -> tuple[float, float]:
    """Requests in each round for the rows requested most in the others; of other and own rows."""
    num_slots = int(fraction * counts.shape[1])
    total, away_hits, own_hits = counts.sum(axis=0), 0.0, 0.0
    for wanted in counts:
        hot = np.argsort(wanted - total, kind="stable")[:num_slots]
        own = float(wanted[hot[is_own[hot]]].sum())
        own_hits += own
        away_hits += float(wanted[hot].sum()) - own
    return away_hits, own_hits


def _stored(
    graph: PartitionedGraph, name: str, column: ColumnInfo, features: str | None
) -> ColumnInfo:
    """A column in another form; that of `auto` is estimated from some rows."""
    if features in LOSSY:
        return quantised(column, features)
    if features is None or column.name != FEATURES or column.encoding is not None:
        return column
    parts = map(graph.part, range(graph.num_parts))
    rows = [
        part.rows(name, column.name, 0, min(part.num_nodes(name), _NUM_ROWS // graph.num_parts))
        for part in parts
    ]
    values = np.concatenate(rows)
    return choose_form(Column.of(column.name, values), features, len(values))
