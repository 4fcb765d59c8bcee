"""One hop of neighbour sampling over the in-edges that one part owns.

A hop is three passes: look up every node, draw edges, read their sources. Random reads stay apart
from branches: a wrong guess that waits for one costs more than all the rest (measured: drawing and
reading in one pass takes three times as long). Nodes of other parts are passed over; several parts
fill the same output.

What is drawn is a place in a node's list. Lists are ordered by original ids and draws are keyed by
the original id of the node, so the choice does not depend on the partitioning.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.graph.kernels.rng import draw_below, draw_unit, stream_of


@njit(nogil=True, cache=True)
def count_uniform(
    nodes,
    trees,
    first_node,
    indptr,
    originals,
    key,
    fanout,
    replace,
    begins,
    degrees,
    streams,
    counts,
):
    """Look up the lists of a part's nodes and say how many neighbours each gives.

    Args:
        nodes: New ids, of this and other parts.
        trees: Which seed each node belongs to; of length zero unless sampling is disjoint.
        first_node: New id of the part's first node.
        indptr: Of the part.
        originals: Original ids of the part's nodes.
        key: Of all draws of this hop.
        fanout: Neighbours per node; negative for all.
        replace: Whether a neighbour may be drawn again.
        begins: Out: where the list of each node begins in the part.
        degrees: Out: how long it is.
        streams: Out: of the draws of each node.
        counts: Out: how many of it are drawn.
    """
    num_owned = np.uint64(len(indptr) - 1)
    for i in range(len(nodes)):
        local = np.uint64(nodes[i] - first_node)
        if local < num_owned:
            begin = indptr[local]
            degree = indptr[local + np.uint64(1)] - begin
            begins[i] = begin
            degrees[i] = degree
            tree = trees[i] if len(trees) else 0
            streams[i] = stream_of(key, originals[local], tree)
            if fanout < 0 or (degree <= fanout and not replace) or degree == 0:
                counts[i] = degree
            else:
                counts[i] = fanout


@njit(forceinline=True)
def _floyd(stream, length, count, bitmap, chosen):
    """Draw `count` of `length` places without replacement (Floyd's algorithm)."""
    for j in range(count):
        last = length - count + j
        place = draw_below(stream, j, last + 1)
        # Not a branch, because nothing could predict it.
        is_taken = np.int64((bitmap[place >> 6] >> np.uint64(place & 63)) & np.uint64(1))
        place += is_taken * (last - place)
        bitmap[place >> 6] |= np.uint64(1) << np.uint64(place & 63)
        chosen[j] = place
    for j in range(count):
        bitmap[chosen[j] >> 6] = np.uint64(0)


@njit(nogil=True, cache=True)
def choose_uniform(
    nodes,
    first_node,
    num_owned,
    first_edge,
    replace,
    begins,
    degrees,
    streams,
    slots,
    bitmap,
    edges,
):
    """Draw in-edges of a part's nodes, all equally likely.

    Args:
        nodes: New ids, of this and other parts.
        first_node: New id of the part's first node.
        num_owned: How many nodes the part has.
        first_edge: Id of the part's first edge.
        replace: Whether a neighbour may be drawn again.
        begins: Where the list of each node begins.
        degrees: How long it is.
        streams: Of the draws of each node.
        slots: Where the edges of each node go; one more than nodes.
        bitmap: Zeros, a bit per neighbour of the longest list; zeros again afterwards.
        edges: Out: ids of the edges.
    """
    chosen = np.empty(_longest(slots), np.int64)
    for i in range(len(nodes)):
        if np.uint64(nodes[i] - first_node) >= np.uint64(num_owned):
            continue
        slot = slots[i]
        count = slots[i + 1] - slot
        begin = begins[i]
        degree = degrees[i]
        if count == degree and not replace:
            for j in range(count):
                edges[slot + j] = first_edge + begin + j
            continue
        if replace:
            for j in range(count):
                chosen[j] = draw_below(streams[i], j, degree)
        else:
            _floyd(streams[i], degree, count, bitmap, chosen)
        for j in range(count):
            edges[slot + j] = first_edge + begin + chosen[j]


@njit(nogil=True, cache=True)
def read_sources(nodes, first_node, num_owned, first_edge, indices, slots, edges, neighbours):
    """Read the sources of the edges drawn for a part's nodes.

    Args:
        nodes: New ids, of this and other parts.
        first_node: New id of the part's first node.
        num_owned: How many nodes the part has.
        first_edge: Id of the part's first edge.
        indices: Of the part: new ids of the sources.
        slots: Where the edges of each node are; one more than nodes.
        edges: Ids of the edges.
        neighbours: Out: new ids.
    """
    for i in range(len(nodes)):
        if np.uint64(nodes[i] - first_node) < np.uint64(num_owned):
            for j in range(slots[i], slots[i + 1]):
                neighbours[j] = indices[edges[j] - first_edge]


@njit(forceinline=True)
def _longest(slots):
    longest = np.int64(0)
    for i in range(len(slots) - 1):
        longest = max(longest, slots[i + 1] - slots[i])
    return longest


@njit(forceinline=True)
def _may(edge, times, bound, weights):
    return (len(times) == 0 or times[edge] <= bound) and (len(weights) == 0 or weights[edge] > 0)


@njit(nogil=True, cache=True)
def count_eligible(
    nodes,
    trees,
    bounds,
    first_node,
    indptr,
    originals,
    times,
    weights,
    key,
    fanout,
    replace,
    begins,
    degrees,
    streams,
    counts,
):
    """Do as `count_uniform` where times or weights forbid some neighbours.

    Args:
        nodes: New ids, of this and other parts.
        trees: Which seed each node belongs to; of length zero unless sampling is disjoint.
        bounds: Latest time of a neighbour of each node; ignored without `times`.
        first_node: New id of the part's first node.
        indptr: Of the part.
        originals: Original ids of the part's nodes.
        times: Of the part's edges; of length zero if there are none.
        weights: Of the part's edges; of length zero if there are none. Only edges that weigh more
            than zero are drawn.
        key: Of all draws of this hop.
        fanout: Neighbours per node; negative for all.
        replace: Whether a neighbour may be drawn again.
        begins: Out: where the list of each node begins in the part.
        degrees: Out: how long it is, with forbidden ones.
        streams: Out: of the draws of each node.
        counts: Out: how many of it are drawn.
    """
    num_owned = np.uint64(len(indptr) - 1)
    for i in range(len(nodes)):
        local = np.uint64(nodes[i] - first_node)
        if local >= num_owned:
            continue
        begin = indptr[local]
        end = indptr[local + np.uint64(1)]
        bound = bounds[i] if len(times) else 0
        num_eligible = 0
        for edge in range(begin, end):
            if _may(edge, times, bound, weights):
                num_eligible += 1
        begins[i] = begin
        degrees[i] = end - begin
        tree = trees[i] if len(trees) else 0
        streams[i] = stream_of(key, originals[local], tree)
        if fanout < 0 or (num_eligible <= fanout and not replace) or num_eligible == 0:
            counts[i] = num_eligible
        else:
            counts[i] = fanout


@njit(forceinline=True)
def _keep_smallest(keys, chosen, num_kept, count, key, place):
    """Insert a place into the `count` smallest by key; the earlier one wins a tie."""
    if num_kept == count and key >= keys[count - 1]:
        return num_kept
    j = num_kept if num_kept < count else count - 1
    while j > 0 and keys[j - 1] > key:
        keys[j] = keys[j - 1]
        chosen[j] = chosen[j - 1]
        j -= 1
    keys[j] = key
    chosen[j] = place
    return min(num_kept + 1, count)


@njit(nogil=True, cache=True)
def choose_eligible(
    nodes,
    bounds,
    first_node,
    num_owned,
    first_edge,
    times,
    weights,
    replace,
    last,
    begins,
    degrees,
    streams,
    slots,
    bitmap,
    edges,
):
    """Do as `choose_uniform` where times or weights matter.

    With weights and without replacement, the neighbours with the smallest of exponential draws
    divided by weight are taken (Efraimidis and Spirakis); with replacement, by inverting the sum.

    Args:
        nodes: New ids, of this and other parts.
        bounds: Latest time of a neighbour of each node; ignored without `times`.
        first_node: New id of the part's first node.
        num_owned: How many nodes the part has.
        first_edge: Id of the part's first edge.
        times: Of the part's edges, or of length zero.
        weights: Of the part's edges, or of length zero.
        replace: Whether a neighbour may be drawn again.
        last: Whether the latest neighbours are taken instead of drawing.
        begins: Where the list of each node begins.
        degrees: How long it is.
        streams: Of the draws of each node.
        slots: Where the edges of each node go; one more than nodes.
        bitmap: Zeros, a bit per neighbour of the longest list; zeros again afterwards.
        edges: Out: ids of the edges.
    """
    longest_list = np.int64(len(bitmap)) * 64
    longest = _longest(slots)
    places = np.empty(longest_list, np.int64)
    sums = np.empty(longest_list if len(weights) else 0, np.float64)
    chosen = np.empty(longest, np.int64)
    ages = np.empty(longest, np.int64)
    waits = np.empty(longest, np.float64)
    for i in range(len(nodes)):
        if np.uint64(nodes[i] - first_node) >= np.uint64(num_owned) or slots[i] == slots[i + 1]:
            continue
        slot = slots[i]
        count = slots[i + 1] - slot
        begin = begins[i]
        bound = bounds[i] if len(times) else 0
        num_eligible = 0
        for place in range(degrees[i]):
            if _may(begin + place, times, bound, weights):
                places[num_eligible] = place
                num_eligible += 1
        stream = streams[i]
        if count == num_eligible and not replace:
            for j in range(count):
                chosen[j] = places[j]
        elif last:
            num_kept = 0
            for j in range(num_eligible):
                age = bound - times[begin + places[j]]
                num_kept = _keep_smallest(ages, chosen, num_kept, count, age, places[j])
        elif len(weights) == 0:
            if replace:
                for j in range(count):
                    chosen[j] = draw_below(stream, j, num_eligible)
            else:
                _floyd(stream, num_eligible, count, bitmap, chosen)
            for j in range(count):
                chosen[j] = places[chosen[j]]
        elif replace:
            total = 0.0
            for j in range(num_eligible):
                total += weights[begin + places[j]]
                sums[j] = total
            for j in range(count):
                target = draw_unit(stream, j) * total
                chosen[j] = places[np.searchsorted(sums[:num_eligible], target)]
        else:
            num_kept = 0
            for j in range(num_eligible):
                wait = -np.log(draw_unit(stream, places[j])) / weights[begin + places[j]]
                num_kept = _keep_smallest(waits, chosen, num_kept, count, wait, places[j])
        for j in range(count):
            edges[slot + j] = first_edge + begin + chosen[j]
