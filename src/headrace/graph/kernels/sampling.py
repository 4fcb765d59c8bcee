"""One hop of neighbour sampling over the in-edges of one graph partition.

A hop has three passes: look up every node, draw edges, read their sources. Separating random reads
from branches is 3x faster than one pass (measured), because a mispredicted branch that waits for a
random read dominates. Nodes of other partitions are skipped; several partitions fill the same
output. Neighbour lists are ordered by original ids and draws are keyed by the node's original id,
so the result does not depend on the partitioning; `choose_near` is the exception. `choose_labor`
draws by the original ids of the neighbours instead.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.graph.kernels.rng import GOLDEN, draw_below, draw_unit, mix, stream_of

_MOST_INSERTED = 64
"""Up to this many neighbours, insertion is as fast as sorting the list or faster (measured)."""


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
    """Look up the neighbour lists of a partition's nodes and count the neighbours to draw.

    Args:
        nodes: New ids, also of other partitions.
        trees: Seed of each node; empty unless sampling is disjoint.
        first_node: New id of the partition's first node.
        indptr: Of the partition.
        originals: Original ids of the partition's nodes.
        key: Random key of this hop.
        fanout: Neighbours per node; negative for all.
        replace: Whether to sample with replacement.
        begins: Receives the start of each node's list in the partition.
        degrees: Receives the length of each list.
        streams: Receives the random stream of each node.
        counts: Receives the number of neighbours to draw.
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
    """Draw `count` of `length` positions without replacement (Floyd's algorithm)."""
    for j in range(count):
        last = length - count + j
        place = draw_below(stream, j, last + 1)
        # Branch-free, because the branch would be unpredictable.
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
    """Draw in-edges of a partition's nodes uniformly.

    Args:
        nodes: New ids, also of other partitions.
        first_node: New id of the partition's first node.
        num_owned: Number of nodes of the partition.
        first_edge: Id of the partition's first edge.
        replace: Whether to sample with replacement.
        begins: Start of each node's list.
        degrees: Length of each list.
        streams: Random stream of each node.
        slots: Output range of each node; one more than nodes.
        bitmap: Zeros, one bit per neighbour of the longest list; zeros again on return.
        edges: Receives the ids of the edges.
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
def choose_near(
    nodes,
    first_node,
    num_owned,
    first_edge,
    replace,
    far,
    low,
    high,
    scores,
    indices,
    begins,
    degrees,
    streams,
    slots,
    bitmap,
    edges,
):
    """Like `choose_uniform`, but sources outside of `low` to `high` are drawn with weight `far`.

    If `scores` is not empty, it holds the weight of each source instead.

    Neighbours are drawn one after another, in proportion to their weights, by rejection: a uniform
    draw of a far one is accepted with probability `far`. The two halves of a random number select
    and accept. If more than half of a long list is drawn, or of any with a small weight, most draws
    would be rejected; those with the smallest exponential draw divided by weight are chosen then
    (Efraimidis and Spirakis), which takes longer for short lists and has the same distribution.
    Other arguments as for `choose_uniform`; `indices` holds new ids of the sources.
    """
    chosen = np.empty(_longest(slots), np.int64)
    accepted = np.uint64(far * 4294967296.0)
    lower = np.uint64(0xFFFFFFFF)
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
        number, j = np.uint64(0), 0
        if 2 * count > degree and not replace and (degree > 64 or far < 0.1 or len(scores) > 0):
            waits = np.empty(degree, np.float64)
            for place in range(degree):
                waits[place] = -np.log(draw_unit(streams[i], place))
                source = indices[begin + place]
                if source < low or source >= high:
                    # Ids of a damaged graph are checked later.
                    has_score = 0 <= source < len(scores)
                    waits[place] /= scores[source] if has_score else far
            order = np.argsort(waits)
            for j in range(count):
                edges[slot + j] = first_edge + begin + order[j]
            continue
        while j < count:
            number += np.uint64(1)
            bits = mix(streams[i] + number * GOLDEN)
            place = np.int64(((bits >> np.uint64(32)) * np.uint64(degree)) >> np.uint64(32))
            if (bitmap[place >> 6] >> np.uint64(place & 63)) & np.uint64(1):
                continue
            source = indices[begin + place]
            if 0 <= source < len(scores):
                accepted = np.uint64(scores[source] * 4294967296.0)
            if (bits & lower) >= accepted and (source < low or source >= high):
                continue
            if not replace:
                bitmap[place >> 6] |= np.uint64(1) << np.uint64(place & 63)
            chosen[j] = place
            j += 1
        for j in range(count):
            edges[slot + j] = first_edge + begin + chosen[j]
            bitmap[chosen[j] >> 6] = np.uint64(0)


@njit(nogil=True, cache=True)
def read_sources(nodes, first_node, num_owned, first_edge, indices, slots, edges, neighbours):
    """Read the sources of the edges drawn for a partition's nodes into `neighbours`.

    Other arguments as for `choose_uniform`; `indices` holds new ids of the partition's sources.
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
    """Like `count_uniform`, with neighbours filtered by time or weight.

    Other arguments as for `count_uniform`. `bounds` holds the latest neighbour time of each node
    and is ignored without `times`. `times` and `weights` belong to the partition's edges and are
    empty if unused; only edges with a positive weight are eligible. `degrees` includes ineligible
    neighbours.
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
    """Insert a position into the `count` smallest by key; the earlier one wins a tie."""
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
def choose_labor(
    nodes,
    first_node,
    num_owned,
    first_edge,
    key,
    indices,
    originals,
    begins,
    degrees,
    slots,
    edges,
):
    """Take the in-neighbours with the smallest random numbers, which all nodes share.

    This is LABOR-0 with a fixed number of neighbours (Balin and Catalyurek, 2023). The number of a
    neighbour is a hash of `key` and its original id. Reads whole lists, also long ones. `indices`
    holds new ids of the sources, `originals` the original ids of all sources by new id; it is empty
    if they are the same. Other arguments as for `choose_uniform`.
    """
    longest = _longest(slots)
    chosen = np.empty(longest, np.int64)
    smallest = np.empty(min(longest, _MOST_INSERTED), np.uint64)
    numbers = np.empty(degrees.max() if len(degrees) else 0, np.uint64)
    for i in range(len(nodes)):
        if np.uint64(nodes[i] - first_node) >= np.uint64(num_owned):
            continue
        slot = slots[i]
        count = slots[i + 1] - slot
        begin = begins[i]
        degree = degrees[i]
        if count == degree:
            for j in range(count):
                edges[slot + j] = first_edge + begin + j
            continue
        for place in range(degree):
            source = indices[begin + place]
            # Ids of a damaged graph are checked later.
            if 0 <= source < len(originals):
                source = originals[source]
            numbers[place] = stream_of(key, source, 0)
        if count > _MOST_INSERTED:
            # Stable, so that the first of several edges of a neighbour is chosen.
            chosen[:count] = np.argsort(numbers[:degree], kind="mergesort")[:count]
        else:
            num_kept = 0
            for place in range(degree):
                num_kept = _keep_smallest(smallest, chosen, num_kept, count, numbers[place], place)
        for j in range(count):
            edges[slot + j] = first_edge + begin + chosen[j]


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
    """Like `choose_uniform`, with neighbours filtered by time or weight.

    With weights and without replacement, the neighbours with the smallest exponential draw divided
    by weight are chosen (Efraimidis and Spirakis); with replacement, by inverting the cumulative
    sum. Other arguments as for `choose_uniform` and `count_eligible`. `last` selects the latest
    neighbours instead of drawing.
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
