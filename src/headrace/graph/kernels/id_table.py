"""Relabelling of graph ids to row numbers of a batch, in order of first occurrence."""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.graph.kernels.rng import GOLDEN


@njit(nogil=True, cache=True)
def relabel_dense(ids, table, base, nodes, num_nodes, rows):
    """Assign a row number to every id, using a table with an entry per possible id.

    Entries below `base` belong to earlier batches, so the table is never cleared. The loop is
    branch-free because the branch "id is new" is unpredictable.

    Args:
        ids: Ids to relabel.
        table: `base` plus the row number of each known id.
        base: Lowest entry of this batch.
        nodes: Known ids by row number; has room for `ids` and one more.
        num_nodes: Number of known ids.
        rows: Receives the row numbers of `ids`.

    Returns:
        New number of known ids.
    """
    for i in range(len(ids)):
        node = ids[i]
        entry = np.int64(table[node])
        is_new = np.int64(entry < base)
        entry += is_new * (base + num_nodes - entry)
        table[node] = entry
        nodes[num_nodes] = node
        num_nodes += is_new
        rows[i] = entry - base
    return num_nodes


@njit(nogil=True, cache=True)
def place_dense(ids, table, base):
    """Insert ids as the first rows; a duplicate keeps its first row."""
    for i in range(len(ids)):
        if table[ids[i]] < base:
            table[ids[i]] = base + i


@njit(forceinline=True)
def _slot_of(node, keys, entries, base):
    """Slot of an id, or the free slot where it belongs (linear probing)."""
    mask = np.uint64(len(keys) - 1)
    spread = np.uint64(node) * GOLDEN
    slot = (spread ^ (spread >> np.uint64(32))) & mask
    while entries[slot] >= base and keys[slot] != node:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True)
def relabel_hash(ids, keys, entries, base, nodes, num_nodes, rows):
    """Like `relabel_dense`, with memory for the nodes of a batch only.

    Other arguments as for `relabel_dense`. `keys` holds the ids of slots; its length is a power of
    two, at least twice the number of ids. `entries` holds `base` plus the row numbers of slots; a
    slot with a lower entry is free.
    """
    for i in range(len(ids)):
        node = np.int64(ids[i])
        slot = _slot_of(node, keys, entries, base)
        if entries[slot] < base:
            keys[slot] = node
            entries[slot] = base + num_nodes
            nodes[num_nodes] = node
            num_nodes += 1
        rows[i] = entries[slot] - base
    return num_nodes


@njit(nogil=True, cache=True)
def place_hash(ids, keys, entries, base):
    """Insert ids as the first rows; a duplicate keeps its first row."""
    for i in range(len(ids)):
        node = np.int64(ids[i])
        slot = _slot_of(node, keys, entries, base)
        if entries[slot] < base:
            keys[slot] = node
            entries[slot] = base + i


@njit(nogil=True, cache=True)
def repeat_rows(first, counts, cols):
    """Write row `first + i` `counts[i]` times."""
    slot = 0
    for i in range(len(counts)):
        for _ in range(counts[i]):
            cols[slot] = first + i
            slot += 1


@njit(nogil=True, cache=True)
def add_up(counts, slots):
    """Write the start of each run and the end of the last (exclusive prefix sum)."""
    total = np.int64(0)
    for i in range(len(counts)):
        slots[i] = total
        total += counts[i]
    slots[len(counts)] = total


@njit(nogil=True, cache=True)
def place_runs(positions, counts, values, slots, out):
    """Copy the run of each requested node from one store's reply to its position in the result."""
    begin = np.int64(0)
    for i in range(len(positions)):
        slot = slots[positions[i]]
        for j in range(counts[i]):
            out[slot + j] = values[begin + j]
        begin += counts[i]
