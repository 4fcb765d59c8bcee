"""One hop of neighbour sampling, batched over nodes and split by graph partition."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from headrace.core.errors import DamagedGraphError, SpecError
from headrace.graph.kernels import id_table, sampling
from headrace.graph.schema import EdgeType

_NONE = np.empty(0, np.int64)
_NO_SCORES = np.empty(0, np.float32)

LEAST_FAR = 0.01
"""Least weight of far neighbours; draws are repeated up to twice its inverse times on average."""


def check_far(far: float, weight: str | None, time: str | None) -> None:
    """Raise SpecError if `far` is out of range or combined with weights or times."""
    if not LEAST_FAR <= far <= 1:
        raise SpecError(f"far is {far}", f"use a number from {LEAST_FAR} to 1")
    if far < 1 and (weight is not None or time is not None):
        raise SpecError("far cannot be combined with weights or times", "omit one of them")


def check_labor(**excluded: bool) -> None:
    """Raise SpecError if one of the options that LABOR draws exclude is used."""
    for name, is_used in excluded.items():
        if is_used:
            raise SpecError(f"labor cannot be combined with {name}", "omit one of them")


# Up to this many partitions, scanning all nodes in each is faster than sorting nodes by partition
# (measured with 3 hops of 15, 10 and 5: equal at 4 partitions, 1.2 times as long at 16).
_MAX_SCANNED_PARTS = 4


@dataclass(frozen=True)
class Rule:
    """How neighbours are sampled.

    Attributes:
        replace: Whether to sample with replacement.
        disjoint: Whether every seed has its own subgraph; required with times, as in PyG.
        last: Whether to take the latest neighbours instead of sampling uniformly among those not
            later than the seed; PyG's `temporal_strategy="last"`.
        edge_ids: Whether to return edge ids.
        far: Weight of neighbours in other partitions than most seeds of the batch; others have 1.
        labor: Whether all nodes of a hop share the random numbers of their neighbours, so that they
            take the same ones more often.
    """

    replace: bool = False
    disjoint: bool = False
    last: bool = False
    edge_ids: bool = True
    far: float = 1.0
    labor: bool = False

    def __post_init__(self) -> None:
        check_far(self.far, None, None)
        if self.labor:
            check_labor(
                replace=self.replace, disjoint=self.disjoint, last=self.last, far=self.far < 1
            )
        if self.replace and self.last:
            raise SpecError(
                "the latest neighbours cannot be sampled with replacement",
                "use replace=False, or temporal_strategy='uniform'",
            )


@dataclass(frozen=True)
class HopRequest:
    """Request for neighbours of nodes.

    Attributes:
        edge_type: Edge type; the nodes are of its destination type.
        nodes: New ids, `int64`; may repeat.
        fanout: Neighbours of each node; -1 for all.
        key: Random key; see `hop_key`.
        rule: How neighbours are sampled.
        trees: With disjoint sampling, the seed number of each node; else None.
        bounds: Latest time of a neighbour, per node; None without times.
        weight: Weight column of the edges, for stores; `EdgePart` has the values themselves.
        time: Time column of the edges, likewise.
        near: First and end of the new ids that are not far; required if `rule.far` is below 1.
        scores: Weight of each far source by new id, instead of `rule.far`; stores ignore it.
    """

    edge_type: EdgeType
    nodes: np.ndarray
    fanout: int
    key: int
    rule: Rule = field(default_factory=Rule)
    trees: np.ndarray | None = None
    bounds: np.ndarray | None = None
    weight: str | None = None
    time: str | None = None
    near: tuple[int, int] | None = None
    scores: np.ndarray | None = None

    def at(self, positions: np.ndarray) -> HopRequest:
        """The request for some of the nodes."""
        return replace(
            self,
            nodes=self.nodes[positions],
            trees=None if self.trees is None else self.trees[positions],
            bounds=None if self.bounds is None else self.bounds[positions],
        )


@dataclass(frozen=True)
class Hop:
    """Neighbours of the requested nodes, in their order.

    Attributes:
        counts: Number of neighbours of each node, `int64`.
        neighbours: New ids, concatenated.
        edges: Edge ids, likewise; empty unless requested. Ids number the edges of all partitions
            in storage order.
    """

    counts: np.ndarray
    neighbours: np.ndarray
    edges: np.ndarray


class HopSource(Protocol):
    """Source of neighbours: local graph partitions or stores."""

    def hop(self, request: HopRequest) -> Hop:
        """Sample neighbours."""
        ...


@dataclass(frozen=True)
class EdgePart:
    """Edges of one type in one graph partition; arrays may be memory-mapped.

    Attributes:
        first_node: New id of the first destination in the partition.
        first_edge: Id of the first edge.
        indptr: CSC offsets of the destinations.
        indices: New ids of the sources, per destination ordered by original id.
        originals: Original ids of the destinations.
        weights: Weight per edge, None for uniform sampling; edges of weight 0 are never sampled.
        times: Integer time per edge, of the edge or its source; None without times.
        num_sources: Bound of the source ids; None to skip the check.
        source_ids: Returns the original ids of all sources by new id; None if they equal new ids.
    """

    first_node: int
    first_edge: int
    indptr: np.ndarray
    indices: np.ndarray
    originals: np.ndarray
    weights: np.ndarray | None = None
    times: np.ndarray | None = None
    num_sources: int | None = None
    source_ids: Callable[[], np.ndarray] | None = None

    def __post_init__(self) -> None:
        for name in ("indptr", "indices", "originals", "weights", "times"):
            values = getattr(self, name)
            if values is not None:  # numba is slow to recognise a memmap
                object.__setattr__(self, name, np.asarray(values))
        self._check("weights", self.weights, "iuf")
        self._check("times", self.times, "iu")

    def _check(self, name: str, values: np.ndarray | None, kinds: str) -> None:
        if values is None:
            return
        if values.shape != self.indices.shape or values.dtype.kind not in kinds:
            raise SpecError(
                f"{name} of {len(self.indices)} edges are {values.dtype} of shape {values.shape}",
                f"name a column with one {'number' if 'f' in kinds else 'integer'} per edge",
            )
        # Dtypes that the kernels do not support.
        plain = {"float16": np.float32, "uint64": np.int64}.get(values.dtype.name)
        if plain is not None:
            object.__setattr__(self, name, values.astype(plain))

    @property
    def is_uniform(self) -> bool:
        """Whether all neighbours of a node are equally likely."""
        return self.weights is None and self.times is None


def hop_key(seed: int, epoch: int, batch: int, hop: int, edge_type: EdgeType) -> int:
    """Random key of a hop, combined with original node ids in the kernels."""
    key = 0
    for part in (seed, epoch, batch, hop, zlib.crc32("/".join(edge_type).encode())):
        key = int(_mix((key * 0x9E3779B97F4A7C15 + part + 1) % 2**64))
    return key


def _mix(x: int) -> int:
    """Hash 64 bits, as the kernels do but without compilation."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


class LocalSource:
    """A `HopSource` of memory-mapped graph partitions, in order of partitions."""

    def __init__(self, parts: Mapping[EdgeType, Sequence[EdgePart]]) -> None:
        self._parts = {edge_type: tuple(partitions) for edge_type, partitions in parts.items()}

    def hop(self, request: HopRequest) -> Hop:
        """Sample neighbours."""
        parts = self._parts[request.edge_type]
        if len(parts) <= _MAX_SCANNED_PARTS:
            return hop_over(parts, request)
        offsets = np.array([0, *(part.first_node + len(part.originals) for part in parts)])
        split = split_by_partition(request.nodes, offsets)
        hops = [(at, hop_over([parts[p]], request.at(at))) for p, at in split]
        return stitch(len(request.nodes), hops)


def hop_over(parts: Sequence[EdgePart], request: HopRequest) -> Hop:
    """Sample neighbours of nodes in these graph partitions; other nodes get none.

    Raises:
        SpecError: Only one of the request and the partitions has times.
    """
    _check(parts, request)
    num_nodes = len(request.nodes)
    trees = _NONE if request.trees is None else request.trees
    bounds = _NONE if request.bounds is None else request.bounds
    again, last = request.rule.replace, request.rule.last
    key = np.uint64(request.key)
    begins = np.empty(num_nodes, np.int64)
    degrees = np.zeros(num_nodes, np.int64)
    streams = np.empty(num_nodes, np.uint64)
    counts = np.zeros(num_nodes, np.int64)
    for part in parts:
        if part.is_uniform:
            sampling.count_uniform(
                request.nodes, trees, part.first_node, part.indptr, part.originals, key,
                request.fanout, again, begins, degrees, streams, counts,
            )  # fmt: skip
        else:
            sampling.count_eligible(
                request.nodes, trees, bounds, part.first_node, part.indptr, part.originals,
                _or_none(part.times), _or_none(part.weights), key, request.fanout, again,
                begins, degrees, streams, counts,
            )  # fmt: skip
    slots = np.empty(num_nodes + 1, np.int64)
    id_table.add_up(counts, slots)
    edges = np.empty(slots[-1], np.int64)
    neighbours = np.empty(slots[-1], parts[0].indices.dtype)
    bitmap = np.zeros((degrees.max(initial=0) + 63) // 64, np.uint64)
    again = again and request.fanout >= 0
    scores = _NO_SCORES if request.scores is None else request.scores
    for part in parts:
        num_owned = len(part.originals)
        if part.is_uniform and request.near is not None:
            sampling.choose_near(
                request.nodes, part.first_node, num_owned, part.first_edge, again,
                request.rule.far, *request.near, scores, part.indices,
                begins, degrees, streams, slots, bitmap, edges,
            )  # fmt: skip
        elif request.rule.labor and request.fanout >= 0:
            sampling.choose_labor(
                request.nodes, part.first_node, num_owned, part.first_edge, key,
                part.indices, _originals(part), begins, degrees, slots, edges,
            )  # fmt: skip
        elif part.is_uniform:
            sampling.choose_uniform(
                request.nodes, part.first_node, num_owned, part.first_edge, again,
                begins, degrees, streams, slots, bitmap, edges,
            )  # fmt: skip
        else:
            sampling.choose_eligible(
                request.nodes, bounds, part.first_node, num_owned, part.first_edge,
                _or_none(part.times), _or_none(part.weights), again, last,
                begins, degrees, streams, slots, bitmap, edges,
            )  # fmt: skip
        sampling.read_sources(
            request.nodes, part.first_node, num_owned, part.first_edge, part.indices,
            slots, edges, neighbours,
        )  # fmt: skip
    _check_sources(request.edge_type, neighbours, parts[0].num_sources)
    edges = edges if request.rule.edge_ids else _NONE
    return Hop(counts, neighbours, edges)


def _check_sources(edge_type: EdgeType, neighbours: np.ndarray, num_sources: int | None) -> None:
    """Check ids from files before they are used as array indices."""
    if num_sources is None or not len(neighbours):
        return
    if not 0 <= neighbours.min() <= neighbours.max() < num_sources:
        raise DamagedGraphError(
            f"the graph is damaged: edges of type {edge_type} have source ids that are not below "
            f"{num_sources}"
        )


def _or_none(values: np.ndarray | None) -> np.ndarray:
    return _NONE if values is None else values


def _originals(part: EdgePart) -> np.ndarray:
    return np.empty(0, part.indices.dtype) if part.source_ids is None else part.source_ids()


def _check(parts: Sequence[EdgePart], request: HopRequest) -> None:
    for name, values in (("trees", request.trees), ("bounds", request.bounds)):
        if values is not None and len(values) != len(request.nodes):
            raise SpecError(
                f"a hop has {len(request.nodes)} nodes and {len(values)} {name}",
                "pass one per node",
            )
    if (request.rule.far < 1) != (request.near is not None):
        raise SpecError(
            "only one of far and the ids that are near is given", "give both or neither"
        )
    if request.near is not None and not all(part.is_uniform for part in parts):
        raise SpecError("far cannot be combined with weights or times", "omit one of them")
    has_times = any(part.times is not None for part in parts)
    if request.rule.labor:
        has_weights = any(part.weights is not None for part in parts)
        check_labor(weights=has_weights, times=has_times, trees=request.trees is not None)
    if has_times and request.bounds is None:
        raise SpecError(
            f"edges of {request.edge_type} have times, but the seeds have none",
            "pass a time per seed, or open the graph without times",
        )
    if request.rule.last and not has_times:
        raise SpecError(
            f"the latest neighbours of {request.edge_type} were requested, but there are no times",
            "name the time column, or sample uniformly",
        )


def split_by_partition(nodes: np.ndarray, offsets: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Group new ids by graph partition: partitions, and the positions of their nodes, ascending.

    `offsets` are the first new id of each partition, and the end.
    """
    partitions = np.searchsorted(offsets, nodes, side="right") - 1
    # numpy uses radix sort for 16 bits, which is several times as fast.
    order = np.argsort(
        partitions.astype(np.uint16) if len(offsets) < 2**16 else partitions, kind="stable"
    )
    ends = np.cumsum(np.bincount(partitions, minlength=len(offsets) - 1))
    return [
        (part, order[begin:end])
        for part, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        if end > begin
    ]


def stitch(num_nodes: int, hops: Sequence[tuple[np.ndarray, Hop]]) -> Hop:
    """Merge hops of several partitions, each with the positions of its nodes in the request."""
    counts = np.zeros(num_nodes, np.int64)
    for positions, hop in hops:
        counts[positions] = hop.counts
    slots = np.empty(num_nodes + 1, np.int64)
    id_table.add_up(counts, slots)
    has_edges = any(len(hop.edges) for _, hop in hops)
    dtype = np.result_type(np.int32, *(hop.neighbours.dtype for _, hop in hops))
    neighbours = np.empty(slots[-1], dtype)
    edges = np.empty(slots[-1] if has_edges else 0, np.int64)
    for positions, hop in hops:
        id_table.place_runs(positions, hop.counts, hop.neighbours, slots, neighbours)
        if has_edges:
            id_table.place_runs(positions, hop.counts, hop.edges, slots, edges)
    return Hop(counts, neighbours, edges)
