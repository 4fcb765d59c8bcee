"""CSC construction: counting, scattering, sorting; conversion to undirected adjacency lists."""

from __future__ import annotations

import numpy as np
from numba import njit

# Lists up to this length use insertion sort, which is faster than a general sort (thresholds from
# 24 to 64 measured equal on a power-law graph).
_SMALL = 32


@njit(cache=True)
def count_edges(src, dst, num_src, num_dst, degrees):
    """Add the edges of a chunk to `degrees`, by destination.

    Returns:
        The first row with an end out of range, or -1.
    """
    for row in range(len(dst)):
        u, v = src[row], dst[row]
        if u < 0 or u >= num_src or v < 0 or v >= num_dst:
            return row
        degrees[v] += 1
    return -1


@njit(cache=True)
def scatter_edges(src, dst, first_row, start, stop, base, cursor, indices, ids):
    """Write the edges with destinations in `[start, stop)` to their lists, in row order.

    If the table changed after counting, its lists are wrong, which `cursor` shows, but nothing is
    written out of bounds.

    Args:
        src: Sources of a chunk.
        dst: Destinations of a chunk.
        first_row: Row number of the chunk's first edge.
        start: First destination of the window.
        stop: End of the window (exclusive).
        base: Position of the window in the file.
        cursor: Next position in the file, by destination; updated.
        indices: The window; receives the sources.
        ids: The window; receives row numbers; empty if they are not kept.
    """
    keep = len(ids) > 0
    for row in range(len(dst)):
        v = dst[row]
        if v < start or v >= stop:
            continue
        at = cursor[v] - base
        cursor[v] += 1
        if at >= len(indices):
            continue
        indices[at] = src[row]
        if keep:
            ids[at] = first_row + row


@njit(cache=True)
def sort_lists(indptr, base, indices):
    """Sort every list `indices[indptr[i] - base : indptr[i + 1] - base]` in place."""
    for i in range(len(indptr) - 1):
        start, stop = indptr[i] - base, indptr[i + 1] - base
        if stop - start > _SMALL:
            indices[start:stop].sort()
            continue
        for j in range(start + 1, stop):
            u = indices[j]
            k = j - 1
            while k >= start and indices[k] > u:
                indices[k + 1] = indices[k]
                k -= 1
            indices[k + 1] = u


@njit(cache=True)
def sort_lists_with_ids(indptr, base, indices, ids):
    """Sort every list as `sort_lists` does, with its `ids`; the sort is stable."""
    for i in range(len(indptr) - 1):
        start, stop = indptr[i] - base, indptr[i + 1] - base
        if stop - start > _SMALL:
            order = np.argsort(indices[start:stop], kind="mergesort")
            indices[start:stop] = indices[start:stop][order]
            ids[start:stop] = ids[start:stop][order]
            continue
        for j in range(start + 1, stop):
            u, e = indices[j], ids[j]
            k = j - 1
            while k >= start and indices[k] > u:
                indices[k + 1] = indices[k]
                ids[k + 1] = ids[k]
                k -= 1
            indices[k + 1] = u
            ids[k + 1] = e


@njit(cache=True)
def _fingerprint(low, high):
    x = np.uint64(low) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(high)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit(cache=True)
def is_simple_undirected(indptr, indices):
    """Whether there are no loops, no parallel edges, and both directions of every edge.

    Compares sums of 64-bit fingerprints of the pairs in both directions, so that one sequential
    pass is enough; different sets have equal sums with probability 2**-64.
    """
    balance = np.uint64(0)
    for v in range(len(indptr) - 1):
        before = -1
        for e in range(indptr[v], indptr[v + 1]):
            u = np.int64(indices[e])
            if u in (v, before):
                return False
            before = u
            if u < v:
                balance += _fingerprint(u, v)
            else:
                balance -= _fingerprint(v, u)
    return balance == np.uint64(0)


@njit(cache=True)
def count_pairs(indptr, indices, src_offset, dst_offset, degrees):
    """Add both ends of all edges of one type to `degrees`, without self-loops."""
    for i in range(len(indptr) - 1):
        v = dst_offset + i
        for e in range(indptr[i], indptr[i + 1]):
            u = src_offset + np.int64(indices[e])
            if u != v:
                degrees[u] += 1
                degrees[v] += 1


@njit(cache=True)
def scatter_pairs(indptr, indices, src_offset, dst_offset, start, stop, base, cursor, out):
    """Write the neighbours of all nodes in `[start, stop)` to their lists, in both directions.

    Args:
        indptr: Of one edge type.
        indices: Of one edge type.
        src_offset: First global id of the source type.
        dst_offset: First global id of the destination type.
        start: First node of the window.
        stop: End of the window (exclusive).
        base: Position of the window in the concatenated lists.
        cursor: Next position in the concatenated lists, by node; updated.
        out: The window.
    """
    for i in range(len(indptr) - 1):
        v = dst_offset + i
        v_inside = start <= v < stop
        for e in range(indptr[i], indptr[i + 1]):
            u = src_offset + np.int64(indices[e])
            if u == v:
                continue
            if v_inside:
                out[cursor[v] - base] = u
                cursor[v] += 1
            if start <= u < stop:
                out[cursor[u] - base] = v
                cursor[u] += 1


@njit(cache=True)
def merge_lists(indptr, base, indices, weights, degrees):
    """Merge equal neighbours of sorted lists into one weighted neighbour, in place.

    Args:
        indptr: Of the lists before merging.
        base: Position of the first list.
        indices: Sorted lists; replaced by the merged lists, contiguous from the start.
        weights: Receives the number of merged entries.
        degrees: Receives the merged lengths.

    Returns:
        Number of remaining neighbours, smallest weight, largest weight.
    """
    size = 0
    least, most = np.int64(2**62), np.int64(0)
    for i in range(len(indptr) - 1):
        first = size
        e, stop = indptr[i] - base, indptr[i + 1] - base
        while e < stop:
            u = indices[e]
            count = 1
            while e + count < stop and indices[e + count] == u:
                count += 1
            e += count
            indices[size] = u
            weights[size] = count
            size += 1
            least, most = min(least, count), max(most, count)
        degrees[i] = size - first
    return size, least, most
