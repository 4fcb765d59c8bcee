"""One hop of neighbour sampling: asked for many nodes at once, answered by those who own them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from headrace.core.errors import DamagedGraphError, SpecError
from headrace.graph.format.manifest import REMEDY
from headrace.graph.kernels import id_table, sampling
from headrace.graph.schema import EdgeType

_NONE = np.empty(0, np.int64)

# Up to so many parts it is faster to let each look at all nodes than to sort nodes by owner
# (measured with 3 hops of 15, 10 and 5: equal at 4 parts, 1.2 times as long at 16).
_FEW_PARTS = 4


@dataclass(frozen=True)
class Rule:
    """How neighbours are chosen.

    Attributes:
        replace: Whether a neighbour may be drawn again.
        disjoint: Whether every seed has its own nodes, as PyG wants it when there are times.
        last: Whether the latest neighbours are taken instead of drawing among all that are not
            later than the seed; PyG's `temporal_strategy="last"`.
        edge_ids: Whether to say which edges were taken.

    Raises:
        SpecError: The latest neighbours are to be drawn again, but nothing is drawn.
    """

    replace: bool = False
    disjoint: bool = False
    last: bool = False
    edge_ids: bool = True

    def __post_init__(self) -> None:
        if self.replace and self.last:
            raise SpecError(
                "the latest neighbours were asked for with replacement, but they are not drawn",
                "use replace=False, or temporal_strategy='uniform'",
            )


@dataclass(frozen=True)
class HopRequest:
    """Nodes whose neighbours are wanted.

    Attributes:
        edge_type: Along which edges; the nodes are of its destination type.
        nodes: New ids, `int64`; a node may appear twice.
        fanout: How many neighbours of each; -1 for all.
        key: Of all draws; see `hop_key`.
        rule: How neighbours are chosen.
        trees: With disjoint sampling the number of the seed each node was met from; else none.
        bounds: The latest time of a neighbour, per node; none if time does not matter.
        weight: Edge column by which an owner draws, where edges have it. Only owners that serve
            several askers need to be told; `EdgePart` has the column itself.
        time: Edge column that says to an owner when an edge came to be, likewise.
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

    def at(self, positions: np.ndarray) -> HopRequest:
        """The same for some of the nodes."""
        return replace(
            self,
            nodes=self.nodes[positions],
            trees=None if self.trees is None else self.trees[positions],
            bounds=None if self.bounds is None else self.bounds[positions],
        )


@dataclass(frozen=True)
class Hop:
    """Neighbours of the nodes asked for, in their order.

    Attributes:
        counts: How many there are of each node, `int64`.
        neighbours: New ids, one node's after the other's.
        edges: Ids of the edges, likewise; empty unless asked for. An id counts the edges of all
            parts in the order in which they are stored.
    """

    counts: np.ndarray
    neighbours: np.ndarray
    edges: np.ndarray


class HopSource(Protocol):
    """Whoever knows all neighbours: the parts themselves, or a way to ask their owners."""

    def hop(self, request: HopRequest) -> Hop:
        """Choose neighbours."""
        ...


@dataclass(frozen=True)
class EdgePart:
    """What one part has of one edge type; arrays may be mapped files.

    Attributes:
        first_node: New id of the first owned destination.
        first_edge: Id of the first edge.
        indptr: Owned destinations + 1.
        indices: New ids of the sources, per destination in the order of original ids.
        originals: Original ids of the owned destinations.
        weights: Per edge; none if all neighbours are equally likely. What weighs nothing is never
            chosen.
        times: Per edge, integers: of the edge or of its source; none if time does not matter.
        num_sources: How many nodes the sources may be; none if that is not looked at.

    Raises:
        SpecError: Weights or times are something else than a number per edge.
    """

    first_node: int
    first_edge: int
    indptr: np.ndarray
    indices: np.ndarray
    originals: np.ndarray
    weights: np.ndarray | None = None
    times: np.ndarray | None = None
    num_sources: int | None = None

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
        # Types that compiled code cannot compare or compute with.
        plain = {"float16": np.float32, "uint64": np.int64}.get(values.dtype.name)
        if plain is not None:
            object.__setattr__(self, name, values.astype(plain))

    @property
    def is_uniform(self) -> bool:
        """Whether all neighbours of a node are equally likely."""
        return self.weights is None and self.times is None


def hop_key(seed: int, epoch: int, batch: int, hop: int, edge_type: EdgeType) -> int:
    """Number from which all draws of a hop follow, together with the node's original id."""
    key = 0
    for part in (seed, epoch, batch, hop, zlib.crc32("/".join(edge_type).encode())):
        key = int(_mix((key * 0x9E3779B97F4A7C15 + part + 1) % 2**64))
    return key


def _mix(x: int) -> int:
    """Spread 64 bits; what the kernels do, without the time to compile."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


class LocalSource:
    """All parts, mapped by this process.

    Args:
        parts: Per edge type what each part has of it, in order of parts.
    """

    def __init__(self, parts: Mapping[EdgeType, Sequence[EdgePart]]) -> None:
        self._parts = {edge_type: tuple(owners) for edge_type, owners in parts.items()}

    def hop(self, request: HopRequest) -> Hop:
        """Choose neighbours."""
        parts = self._parts[request.edge_type]
        if len(parts) <= _FEW_PARTS:
            return hop_over(parts, request)
        offsets = np.array([0, *(part.first_node + len(part.originals) for part in parts)])
        split = split_by_owner(request.nodes, offsets)
        answers = [(at, hop_over([parts[p]], request.at(at))) for p, at in split]
        return stitch(len(request.nodes), answers)


def hop_over(parts: Sequence[EdgePart], request: HopRequest) -> Hop:
    """Choose neighbours of nodes that these parts own.

    A node of another part has no neighbours.

    Raises:
        SpecError: The request needs times that the parts do not have, or the other way round.
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
    for part in parts:
        num_owned = len(part.originals)
        if part.is_uniform:
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
    """Let no damaged file lead others out of their arrays."""
    if num_sources is None or not len(neighbours):
        return
    if not 0 <= neighbours.min() <= neighbours.max() < num_sources:
        raise DamagedGraphError(
            f"the graph is damaged: edges of type {edge_type} come from nodes that are not below "
            f"{num_sources}",
            REMEDY,
        )


def _or_none(values: np.ndarray | None) -> np.ndarray:
    return _NONE if values is None else values


def _check(parts: Sequence[EdgePart], request: HopRequest) -> None:
    for name, values in (("trees", request.trees), ("bounds", request.bounds)):
        if values is not None and len(values) != len(request.nodes):
            raise SpecError(
                f"a hop has {len(request.nodes)} nodes and {len(values)} {name}",
                "give one of them per node",
            )
    has_times = any(part.times is not None for part in parts)
    if has_times and request.bounds is None:
        raise SpecError(
            f"edges of {request.edge_type} have times, but the seeds have none",
            "give a time per seed, or open the graph without times",
        )
    if request.rule.last and not has_times:
        raise SpecError(
            f"the latest neighbours along {request.edge_type} are wanted, but there are no times",
            "name the column of times, or draw uniformly",
        )


def split_by_owner(nodes: np.ndarray, offsets: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Group nodes by the part that owns them.

    Args:
        nodes: New ids.
        offsets: Where the new ids of each part begin; one more than parts.

    Returns:
        Parts that own any, and the positions of their nodes, ascending.
    """
    owners = np.searchsorted(offsets, nodes, side="right") - 1
    # 16 bits are sorted by counting, which is several times as fast.
    order = np.argsort(owners.astype(np.uint16) if len(offsets) < 2**16 else owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=len(offsets) - 1))
    return [
        (part, order[begin:end])
        for part, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        if end > begin
    ]


def stitch(num_nodes: int, answers: Sequence[tuple[np.ndarray, Hop]]) -> Hop:
    """Put together what several owners answered.

    Args:
        num_nodes: How many nodes were asked for in all.
        answers: Positions of the nodes that an owner was asked for, and its answer.
    """
    counts = np.zeros(num_nodes, np.int64)
    for positions, hop in answers:
        counts[positions] = hop.counts
    slots = np.empty(num_nodes + 1, np.int64)
    id_table.add_up(counts, slots)
    has_edges = any(len(hop.edges) for _, hop in answers)
    dtype = np.result_type(np.int32, *(hop.neighbours.dtype for _, hop in answers))
    neighbours = np.empty(slots[-1], dtype)
    edges = np.empty(slots[-1] if has_edges else 0, np.int64)
    for positions, hop in answers:
        id_table.place_runs(positions, hop.counts, hop.neighbours, slots, neighbours)
        if has_edges:
            id_table.place_runs(positions, hop.counts, hop.edges, slots, edges)
    return Hop(counts, neighbours, edges)


class StitchedSource:
    """Owners asked one by one.

    It gives the same as `LocalSource`; stores on other machines are asked in the same way, at the
    same time.

    Args:
        owners: Who knows the neighbours of each part's nodes.
        offsets: Per node type, where the new ids of each part begin; one more than parts.
    """

    def __init__(self, owners: Sequence[HopSource], offsets: Mapping[str, np.ndarray]) -> None:
        self._owners = tuple(owners)
        self._offsets = dict(offsets)

    def hop(self, request: HopRequest) -> Hop:
        """Choose neighbours."""
        split = split_by_owner(request.nodes, self._offsets[request.edge_type[2]])
        answers = [(at, self._owners[part].hop(request.at(at))) for part, at in split]
        return stitch(len(request.nodes), answers)
