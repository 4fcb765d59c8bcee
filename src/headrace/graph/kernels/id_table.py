"""From ids of a graph to row numbers of a batch, in the order in which nodes are met."""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.graph.kernels.rng import GOLDEN


@njit(nogil=True, cache=True)
def relabel_dense(ids, table, base, nodes, num_nodes, rows):
    """Give a row number to every id, a new one where it has none; with an entry per possible id.

    Entries below `base` are left from earlier batches, so nothing is ever cleared. There is no
    branch, because whether an id is new cannot be predicted.

    Args:
        ids: To be relabelled.
        table: `base` and the row number of each known id.
        base: What this batch's entries begin with.
        nodes: Known ids by row number; has room for `ids` and one more.
        num_nodes: How many are known.
        rows: Out: row numbers of `ids`.

    Returns:
        How many are known now.
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
    """Enter ids as the first rows; one that appears again keeps its first row."""
    for i in range(len(ids)):
        if table[ids[i]] < base:
            table[ids[i]] = base + i


@njit(forceinline=True)
def _slot_of(node, keys, entries, base):
    """Find the slot of an id, or the free one where it belongs (linear probing)."""
    mask = np.uint64(len(keys) - 1)
    spread = np.uint64(node) * GOLDEN
    slot = (spread ^ (spread >> np.uint64(32))) & mask
    while entries[slot] >= base and keys[slot] != node:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(nogil=True, cache=True)
def relabel_hash(ids, keys, entries, base, nodes, num_nodes, rows):
    """Do as `relabel_dense` with memory for the nodes of a batch only.

    Args:
        ids: To be relabelled.
        keys: Ids of slots; a power of two of them, at least twice the ids.
        entries: `base` and the row numbers of slots; a slot whose entry is below is free.
        base: What this batch's entries begin with.
        nodes: Known ids by row number; has room for `ids`.
        num_nodes: How many are known.
        rows: Out: row numbers of `ids`.

    Returns:
        How many are known now.
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
    """Enter ids as the first rows; one that appears again keeps its first row."""
    for i in range(len(ids)):
        node = np.int64(ids[i])
        slot = _slot_of(node, keys, entries, base)
        if entries[slot] < base:
            keys[slot] = node
            entries[slot] = base + i


@njit(nogil=True, cache=True)
def repeat_rows(first, counts, cols):
    """Write row `first + i` as often as `counts[i]` says."""
    slot = 0
    for i in range(len(counts)):
        for _ in range(counts[i]):
            cols[slot] = first + i
            slot += 1


@njit(nogil=True, cache=True)
def add_up(counts, slots):
    """Say where each of consecutive runs begins, and where the last one ends."""
    total = np.int64(0)
    for i in range(len(counts)):
        slots[i] = total
        total += counts[i]
    slots[len(counts)] = total


@njit(nogil=True, cache=True)
def place_runs(positions, counts, values, slots, out):
    """Copy the run of each asked node from one owner's answer to its place in the whole."""
    begin = np.int64(0)
    for i in range(len(positions)):
        slot = slots[positions[i]]
        for j in range(counts[i]):
            out[slot + j] = values[begin + j]
        begin += counts[i]
