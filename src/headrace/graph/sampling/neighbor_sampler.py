"""Multi-hop neighbour sampling in PyG's order.

Rows of a batch are the seeds, then nodes in order of appearance. Every node is expanded once, in
the hop after the one that sampled it. In heterogeneous graphs each hop iterates over the edge
types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.kernels.id_table import repeat_rows
from headrace.graph.sampling.hop import HopRequest, HopSource, Rule, hop_key
from headrace.graph.sampling.id_table import DENSE_LIMIT, HashTable, RowTable, table_for
from headrace.graph.sampling.remote_scores import RemoteScores
from headrace.graph.schema import EdgeType

FanOuts = Sequence[int] | Mapping[EdgeType, Sequence[int]]
"""Neighbours per hop, -1 for all; by edge type, or the same for all."""


@dataclass(frozen=True)
class BatchKey:
    """Random key of a batch; epochs and batches within an epoch are numbered from 0."""

    seed: int = 0
    epoch: int = 0
    batch: int = 0


@dataclass(frozen=True)
class HeteroSampled:
    """A batch by node type and edge type, as in PyG's `HeteroSamplerOutput`.

    Attributes:
        node: New ids; seeds first.
        row: Row in `node` of each edge's source (the neighbour).
        col: Row in `node` of each edge's destination.
        edge: Edge ids; None if not requested.
        tree: With disjoint sampling, the seed number of each node (PyG's `batch`), unique across
            the seeds of all types; else None.
    """

    node: dict[str, np.ndarray]
    row: dict[EdgeType, np.ndarray]
    col: dict[EdgeType, np.ndarray]
    edge: dict[EdgeType, np.ndarray] | None
    tree: dict[str, np.ndarray] | None
    num_sampled_nodes: dict[str, list[int]]
    num_sampled_edges: dict[EdgeType, list[int]]


class Sampler:
    """Samples batches; reuses tables between batches, so use one sampler per thread.

    Args:
        source: Source of neighbours.
        num_nodes: Nodes per node type, in a fixed order.
        edge_types: Edge types, in the order in which a hop expands them.
        rule: How neighbours are sampled.
        offsets: First new id of each partition, and the end, by node type; required for `far`.
        dense_limit: Node types with more nodes use a hash table of the batch: saves 4 bytes per
            node of the graph, at about half the speed of relabelling.

    Attributes:
        scores: Weights of remote nodes, by partition of most seeds; a batch of a partition without
            them is sampled by the rule.
    """

    def __init__(
        self,
        source: HopSource,
        num_nodes: Mapping[str, int],
        edge_types: Sequence[EdgeType],
        rule: Rule | None = None,
        offsets: Mapping[str, np.ndarray] | None = None,
        dense_limit: int = DENSE_LIMIT,
    ) -> None:
        self._source = source
        self._num_nodes = dict(num_nodes)
        self._edge_types = tuple(edge_types)
        self.rule = rule or Rule()
        self._offsets = offsets or {}
        self.scores: Mapping[int, RemoteScores] = {}
        if self.rule.far < 1 and not self._offsets:
            raise SpecError("far needs the offsets of the partitions", "pass `offsets`")
        self._tables: dict[str, RowTable] = {
            name: HashTable() if self.rule.disjoint else table_for(count, dense_limit)
            for name, count in self._num_nodes.items()
        }
        # Sizes of the last batch, to preallocate the next one.
        self._sizes: dict[object, int] = {}

    def sample_hetero(
        self,
        seeds: Mapping[str, np.ndarray],
        num_neighbors: FanOuts,
        key: BatchKey,
        seed_times: Mapping[str, np.ndarray] | None = None,
    ) -> HeteroSampled:
        """Sample a batch of a homogeneous or heterogeneous graph.

        Args:
            seeds: New ids by node type.
            num_neighbors: Neighbours per hop; by edge type, or the same for all.
            key: Random key.
            seed_times: Latest neighbour time per seed, by node type; requires disjoint sampling.

        Raises:
            SpecError: A seed, a time or a fan-out is invalid.
        """
        fanouts = _per_edge_type(num_neighbors, self._edge_types)
        num_hops = max((len(hops) for hops in fanouts.values()), default=0)
        bounds = self._bounds(seeds, seed_times)
        rows, first_tree = {}, 0
        for name, count in self._num_nodes.items():
            ids = np.asarray(seeds.get(name, ()), np.int64)
            _check_seeds(ids, name, count)
            rows[name] = _NodeRows(self._tables[name], self._sizes.get(name, 0), ids)
            if self.rule.disjoint:
                rows[name].assign_trees(first_tree, count)
            rows[name].start()
            first_tree += len(ids)
        rule, near, scores = self._preference(seeds)
        edges = {e: _EdgeRows(self._sizes.get(e, 0)) for e in self._edge_types}
        for hop in range(num_hops):
            for edge_type in self._edge_types:
                source, _, destination = edge_type
                fanout = fanouts[edge_type][hop] if hop < len(fanouts[edge_type]) else 0
                weights = None
                if scores is not None and scores.node_type == source:
                    weights = scores.weights
                # With LABOR, all edge types share the random numbers of a source type.
                shared = (source, "", "") if rule.labor else edge_type
                self._expand(
                    edge_type, fanout, hop_key(key.seed, key.epoch, key.batch, hop, shared),
                    rows[source], rows[destination], edges[edge_type], bounds, rule,
                    near.get(source), weights,
                )  # fmt: skip
            for part in rows.values():
                part.next_hop()
        for name, part in rows.items():
            self._sizes[name] = part.num_nodes + 1
        for edge_type, added in edges.items():
            self._sizes[edge_type] = added.num_edges
        return HeteroSampled(
            {name: part.ids() for name, part in rows.items()},
            {e: added.row.values() for e, added in edges.items()},
            {e: added.col.values() for e, added in edges.items()},
            {e: added.edge.values() for e, added in edges.items()} if self.rule.edge_ids else None,
            {name: part.trees() for name, part in rows.items()} if self.rule.disjoint else None,
            {name: part.num_sampled for name, part in rows.items()},
            {e: added.num_sampled for e, added in edges.items()},
        )

    def _expand(
        self,
        edge_type: EdgeType,
        fanout: int,
        key: int,
        sources: _NodeRows,
        destinations: _NodeRows,
        added: _EdgeRows,
        bounds: np.ndarray | None,
        rule: Rule,
        near: tuple[int, int] | None,
        scores: np.ndarray | None,
    ) -> None:
        """Add the neighbours of the last hop's nodes along one edge type."""
        nodes, trees = destinations.frontier()
        if fanout == 0 or len(nodes) == 0:
            added.num_sampled.append(0)
            return
        until = None if bounds is None or trees is None else bounds[trees]
        request = HopRequest(
            edge_type, nodes, fanout, key, rule, trees, until, near=near, scores=scores
        )
        hop = self._source.hop(request)
        row, col = added.add(len(hop.neighbours), hop.edges)
        repeat_rows(destinations.begin, hop.counts, col)
        if trees is None:
            sources.lookup(hop.neighbours, row)
        else:
            sources.lookup(hop.neighbours + np.repeat(trees, hop.counts) * sources.num_ids, row)

    def _preference(
        self, seeds: Mapping[str, np.ndarray]
    ) -> tuple[Rule, dict[str, tuple[int, int]], RemoteScores | None]:
        """The rule, new ids of the home partition by node type, and scores of remote nodes."""
        if self.rule.far == 1 and not self.scores:
            return self.rule, {}, None
        home = self.home(seeds)
        scores = self.scores.get(home)
        rule = self.rule if scores is None else replace(self.rule, far=scores.far)
        if rule.far == 1:
            return rule, {}, None
        near = {
            name: (int(offsets[home]), int(offsets[home + 1]))
            for name, offsets in self._offsets.items()
        }
        return rule, near, scores

    def home(self, seeds: Mapping[str, np.ndarray]) -> int:
        """The partition that has most of the seeds."""
        num_parts = len(next(iter(self._offsets.values()))) - 1
        counts = np.zeros(num_parts, np.int64)
        for name, ids in seeds.items():
            owners = np.searchsorted(self._offsets[name], ids, side="right") - 1
            counts += np.bincount(owners, minlength=num_parts)
        return int(counts.argmax())

    def _bounds(
        self, seeds: Mapping[str, np.ndarray], seed_times: Mapping[str, np.ndarray] | None
    ) -> np.ndarray | None:
        if seed_times is None:
            return None
        if not self.rule.disjoint:
            raise SpecError(
                "seeds have times, but sampling is not disjoint",
                "use Rule(disjoint=True)",
            )
        bounds = []
        for name in self._num_nodes:
            times = np.asarray(seed_times.get(name, ()), np.int64)
            if len(times) != len(seeds.get(name, ())):
                raise SpecError(
                    f"there are {len(seeds.get(name, ()))} seeds of type {name!r}, "
                    f"but {len(times)} times",
                    "pass one time per seed",
                )
            bounds.append(times)
        return np.concatenate(bounds)


class _Growing:
    """An append-only array."""

    def __init__(self, capacity: int) -> None:
        # Slightly more than the last batch; untouched memory costs nothing.
        self._array = np.empty(capacity + capacity // 8 + 16, np.int64)
        self._length = 0

    def add(self, length: int) -> np.ndarray:
        """Append `length` values, to be filled by the caller."""
        begin, self._length = self._length, self._length + length
        self._array = _with_capacity(self._array, begin, self._length)
        return self._array[begin : self._length]

    def values(self) -> np.ndarray:
        return self._array[: self._length]


def _with_capacity(array: np.ndarray, length: int, capacity: int) -> np.ndarray:
    if capacity <= len(array):
        return array
    larger = np.empty(capacity + capacity // 8, array.dtype)
    larger[:length] = array[:length]
    return larger


class _EdgeRows:
    """Edges of one type in a batch."""

    def __init__(self, capacity: int) -> None:
        self.row, self.col, self.edge = _Growing(capacity), _Growing(capacity), _Growing(capacity)
        self.num_sampled: list[int] = []

    @property
    def num_edges(self) -> int:
        return sum(self.num_sampled)

    def add(self, num_edges: int, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.num_sampled.append(num_edges)
        self.edge.add(len(edges))[:] = edges
        return self.row.add(num_edges), self.col.add(num_edges)


class _NodeRows:
    """Nodes of one type in a batch.

    With disjoint sampling a node's key is its tree number times the nodes of its type, plus its id.
    """

    def __init__(self, table: RowTable, capacity: int, seeds: np.ndarray) -> None:
        self._table = table
        self._nodes = np.empty(max(len(seeds) + 1, capacity + capacity // 8), np.int64)
        self._nodes[: len(seeds)] = seeds
        self.num_nodes = len(seeds)
        self.num_ids = 0
        self.num_sampled = [len(seeds)]
        self.begin, self._end = 0, len(seeds)

    def assign_trees(self, first_tree: int, num_ids: int) -> None:
        """Assign every seed its own tree."""
        trees = np.arange(first_tree, first_tree + self.num_nodes)
        self._nodes[: self.num_nodes] += trees * num_ids
        self.num_ids = num_ids

    def start(self) -> None:
        """Add the seeds."""
        self._table.begin(self._nodes[: self.num_nodes])

    def frontier(self) -> tuple[np.ndarray, np.ndarray | None]:
        """New ids of the nodes that the last hop added, and their trees."""
        nodes = self._nodes[self.begin : self._end]
        if self.num_ids == 0:
            return nodes, None
        return nodes % self.num_ids, nodes // self.num_ids

    def lookup(self, nodes: np.ndarray, row: np.ndarray) -> None:
        """Look up rows of nodes, adding new ones."""
        self._nodes = _with_capacity(self._nodes, self.num_nodes, self.num_nodes + len(nodes) + 1)
        self.num_nodes = self._table.rows(nodes, self._nodes, self.num_nodes, row)

    def next_hop(self) -> None:
        self.begin, self._end = self._end, self.num_nodes
        self.num_sampled.append(self._end - self.begin)

    def ids(self) -> np.ndarray:
        nodes = self._nodes[: self.num_nodes]
        return nodes if self.num_ids == 0 else nodes % self.num_ids

    def trees(self) -> np.ndarray:
        trees: np.ndarray = self._nodes[: self.num_nodes] // max(self.num_ids, 1)
        return trees


def _per_edge_type(
    fanouts: FanOuts, edge_types: Sequence[EdgeType]
) -> dict[EdgeType, Sequence[int]]:
    named = fanouts if isinstance(fanouts, Mapping) else dict.fromkeys(edge_types, fanouts)
    unknown = [edge_type for edge_type in named if edge_type not in edge_types]
    if unknown:
        raise SpecError(
            f"there are fan-outs for {unknown}, but the graph has only {list(edge_types)}",
            "name edge types as (source, relation, destination)",
        )
    for edge_type, hops in named.items():
        if any(fanout < -1 for fanout in hops):
            raise SpecError(
                f"the fan-outs {list(hops)} of {edge_type} have one below -1",
                "use the number of neighbours, or -1 for all",
            )
    return {edge_type: named.get(edge_type, ()) for edge_type in edge_types}


def _check_seeds(ids: np.ndarray, name: str, num_nodes: int) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
        raise SpecError(
            f"a seed of type {name!r} is {ids.min() if ids.min() < 0 else ids.max()}, "
            f"but there are {num_nodes} nodes",
            "seeds are new ids, from 0",
        )
