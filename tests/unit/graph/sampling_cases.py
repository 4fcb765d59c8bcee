"""Small graphs cut in parts, and plain-Python twins of the sampling kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from headrace.graph.sampling.hop import EdgePart, HopRequest
from headrace.graph.schema import EdgeType

NODE_TO_NODE: EdgeType = ("node", "to", "node")


@dataclass(frozen=True)
class Cut:
    """A graph in parts.

    Attributes:
        parts: By edge type, what each part has.
        new_ids: By node type, original to new.
        originals: By node type, new to original.
        offsets: By node type, where the new ids of each part begin.
    """

    parts: dict[EdgeType, list[EdgePart]]
    new_ids: dict[str, np.ndarray]
    originals: dict[str, np.ndarray]
    offsets: dict[str, np.ndarray]


@dataclass(frozen=True)
class Edges:
    """Edges of one type by original ids."""

    src: np.ndarray
    dst: np.ndarray
    weights: np.ndarray | None = None
    times: np.ndarray | None = None


def random_edges(
    num_src: int, num_dst: int, num_edges: int, seed: int, extras: bool = False
) -> Edges:
    """Some nodes have many in-edges, some none, some pairs are there twice."""
    rng = np.random.default_rng(seed)
    dst = (num_dst * rng.random(num_edges) ** 2).astype(np.int64)
    src = rng.integers(0, num_src, num_edges)
    order = np.lexsort((src, dst))
    weights = rng.choice([0.0, 0.5, 1.0, 4.0], num_edges) if extras else None
    times = rng.integers(0, 100, num_edges) if extras else None
    return Edges(src[order], dst[order], weights, times)


def cut(num_nodes: dict[str, int], edges: dict[EdgeType, Edges], num_parts: int, seed: int) -> Cut:
    """Deal nodes to parts at random and build what each part stores."""
    rng = np.random.default_rng(seed)
    new_ids, originals, offsets = {}, {}, {}
    for name, count in num_nodes.items():
        part_of = rng.integers(0, num_parts, count)
        originals[name] = np.argsort(part_of, kind="stable")
        new_ids[name] = np.argsort(originals[name])
        sizes = np.bincount(part_of, minlength=num_parts)
        offsets[name] = np.concatenate([[0], np.cumsum(sizes)])
    parts: dict[EdgeType, list[EdgePart]] = {}
    for edge_type, table in edges.items():
        source, _, destination = edge_type
        # Stable: among the in-edges of a node the order by original source stays.
        order = np.argsort(new_ids[destination][table.dst], kind="stable")
        dst = new_ids[destination][table.dst][order]
        src = new_ids[source][table.src][order].astype(np.int32)
        bounds = np.searchsorted(dst, offsets[destination])
        parts[edge_type] = []
        for p in range(num_parts):
            first, last = offsets[destination][p : p + 2]
            begin, end = bounds[p : p + 2]
            parts[edge_type].append(
                EdgePart(
                    int(first),
                    int(begin),
                    np.searchsorted(dst[begin:end], np.arange(first, last + 1)).astype(np.int64),
                    src[begin:end],
                    originals[destination][first:last],
                    None if table.weights is None else table.weights[order][begin:end],
                    None if table.times is None else table.times[order][begin:end],
                    source_ids=partial(np.asarray, originals[source], np.int32),
                )
            )
    return Cut(parts, new_ids, originals, offsets)


MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def twin_of_hop(
    parts: list[EdgePart], request: HopRequest
) -> tuple[list[int], list[int], list[int]]:
    """Counts, neighbours and edges, one node after the other."""
    counts, neighbours, edges = [], [], []
    for i, node in enumerate(request.nodes):
        part = next(p for p in parts if 0 <= node - p.first_node < len(p.originals))
        local = int(node) - part.first_node
        listed = [
            edge
            for edge in range(part.indptr[local], part.indptr[local + 1])
            if (part.weights is None or part.weights[edge] > 0)
            and (
                part.times is None
                or (request.bounds is not None and part.times[edge] <= request.bounds[i])
            )
        ]
        tree = 0 if request.trees is None else int(request.trees[i])
        start = request.key + int(part.originals[local]) * GOLDEN + tree * 0xD1B54A32D192ED03
        first = int(part.indptr[local])
        chosen = twin_of_choice(part, request, listed, first, mix(start & MASK))
        counts.append(len(chosen))
        neighbours += [int(part.indices[edge]) for edge in chosen]
        edges += [part.first_edge + edge for edge in chosen]
    return counts, neighbours, edges


def twin_of_choice(
    part: EdgePart, request: HopRequest, listed: list[int], first: int, stream: int
) -> list[int]:
    k, rule = request.fanout, request.rule

    def bits(number: int) -> int:
        return mix((stream + (number + 1) * GOLDEN) & MASK)

    def below(number: int, bound: int) -> int:
        return (bits(number) >> 32) * bound >> 32

    def unit(number: int) -> float:
        return float(((bits(number) >> 11) + 1) * 2.0**-53)

    if k < 0 or not listed or (len(listed) <= k and not rule.replace):
        return listed
    if rule.last:
        assert part.times is not None
        times = part.times
        return sorted(listed, key=lambda edge: -int(times[edge]))[:k]
    if rule.labor:
        assert part.source_ids is not None
        of = part.source_ids()
        numbers = {
            edge: mix((request.key + int(of[part.indices[edge]]) * GOLDEN) & MASK)
            for edge in listed
        }
        return sorted(listed, key=lambda edge: numbers[edge])[:k]
    if part.weights is None:
        if rule.replace:
            return [listed[below(j, len(listed))] for j in range(k)]
        chosen: list[int] = []
        for j in range(k):
            bound = len(listed) - k + j
            place = below(j, bound + 1)
            chosen.append(bound if place in chosen else place)
        return [listed[place] for place in chosen]
    weights = part.weights
    if rule.replace:
        sums = np.cumsum([weights[edge] for edge in listed])
        return [listed[int(np.searchsorted(sums, unit(j) * sums[-1]))] for j in range(k)]
    waits = {edge: -math.log(unit(edge - first)) / weights[edge] for edge in listed}
    return sorted(listed, key=lambda edge: waits[edge])[:k]
