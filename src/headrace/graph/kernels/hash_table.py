"""Hash table from ids to cached rows (open addressing)."""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.graph.kernels.rng import GOLDEN

FREE = -1


@njit(forceinline=True)
def _probe(node, places, slot_ids):
    """Position of an id in the table, or the free position where it belongs."""
    mask = np.uint64(len(places) - 1)
    spread = np.uint64(node) * GOLDEN
    at = (spread ^ (spread >> np.uint64(32))) & mask
    while places[at] != FREE and slot_ids[places[at]] != node:
        at = (at + np.uint64(1)) & mask
    return at


@njit(nogil=True, cache=True)
def enter_slots(slot_ids, places):
    """Fill an empty table with all slots that have an id."""
    for slot in range(len(slot_ids)):
        if slot_ids[slot] != FREE:
            places[_probe(slot_ids[slot], places, slot_ids)] = slot


@njit(nogil=True, cache=True)
def take_rows(ids, places, slot_ids, is_filled, rows, counters, out, misses):
    """Copy cached rows and list the misses.

    Args:
        ids: Requested ids.
        places: Slots, or `FREE`; the length is a power of two, at least 1.5 times the slots.
        slot_ids: Id of each slot, or `FREE`.
        is_filled: Whether a slot has its row.
        rows: By slot.
        counters: Request counts, by id modulo the length; all are halved when one would overflow
            its byte. Empty to disable counting.
        out: Receives one row per id.
        misses: Receives the positions of ids whose rows are not cached.

    Returns:
        Number of misses.
    """
    num_misses, num_words = 0, out.shape[1]
    for i in range(len(ids)):
        if len(counters) > 0:
            counter = ids[i] % len(counters)
            if counters[counter] == 255:
                for j in range(len(counters)):
                    counters[j] >>= 1
            counters[counter] += 1
        slot = places[_probe(ids[i], places, slot_ids)]
        if slot == FREE or not is_filled[slot]:
            misses[num_misses] = i
            num_misses += 1
        else:
            for j in range(num_words):
                out[i, j] = rows[slot, j]
    return num_misses


@njit(nogil=True, cache=True)
def admit_rows(ids, values, num_used, places, slot_ids, is_filled, rows):
    """Store rows of ids that have a slot, and of others while unused slots remain.

    Slots from `num_used` on are unused. Other arguments as for `take_rows`. Returns the new number
    of used slots.
    """
    for i in range(len(ids)):
        at = _probe(ids[i], places, slot_ids)
        if places[at] == FREE:
            if num_used == len(rows):
                continue
            places[at] = num_used
            slot_ids[num_used] = ids[i]
            num_used += 1
        slot = places[at]
        if not is_filled[slot]:
            is_filled[slot] = True
            for j in range(rows.shape[1]):
                rows[slot, j] = values[i, j]
    return num_used


@njit(nogil=True, cache=True)
def expect_draws(indptr, indices, fanout, halo, expected):
    """Add the expected number of draws of each halo source from all nodes of a partition.

    Args:
        indptr: Of the partition's in-edges.
        indices: Their sources.
        fanout: Neighbours sampled per node; -1 for all.
        halo: Sources that other partitions own, ascending.
        expected: Expected draws, by position in `halo`; added to.
    """
    for node in range(len(indptr) - 1):
        degree = indptr[node + 1] - indptr[node]
        share = 1.0 if fanout < 0 or degree <= fanout else fanout / degree
        for e in range(indptr[node], indptr[node + 1]):
            at = np.searchsorted(halo, indices[e])
            if at < len(halo) and halo[at] == indices[e]:
                expected[at] += share


@njit(cache=True)
def hash_texts(data, offsets, seed):
    """64-bit hash of every string (FNV-1a, then SplitMix64's finaliser).

    String `i` is `data[offsets[i] : offsets[i + 1]]`, `uint8`; `seed` selects the hash function.
    """
    hashes = np.empty(len(offsets) - 1, np.uint64)
    for i in range(len(hashes)):
        h = np.uint64(0xCBF29CE484222325) ^ np.uint64(seed)
        for j in range(offsets[i], offsets[i + 1]):
            h = (h ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes[i] = h ^ (h >> np.uint64(31))
    return hashes
