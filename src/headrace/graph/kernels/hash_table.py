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
def find_slots(ids, places, slot_ids, is_filled, counters, slots):
    """Find the slots of cached rows.

    Args:
        ids: Requested ids.
        places: Slots, or `FREE`; the length is a power of two, at least 1.5 times the slots.
        slot_ids: Id of each slot, or `FREE`.
        is_filled: Whether a slot has its row.
        counters: Request counts, by id modulo the length; all are halved when one would overflow
            its byte. Empty to disable counting.
        slots: Receives the slot of each id, or `FREE` if its row is not cached.
    """
    for i in range(len(ids)):
        if len(counters) > 0:
            counter = ids[i] % len(counters)
            if counters[counter] == 255:
                for j in range(len(counters)):
                    counters[j] >>= 1
            counters[counter] += 1
        slot = places[_probe(ids[i], places, slot_ids)]
        slots[i] = slot if slot != FREE and is_filled[slot] else FREE


@njit(nogil=True, cache=True)
def claim_slots(ids, num_used, places, slot_ids, is_filled, slots):
    """Find slots for rows of ids that have one, and of others while unused slots remain.

    Slots from `num_used` on are unused. `slots` receives the slot to fill for each id, or `FREE`.
    Other arguments as for `find_slots`. Returns the new number of used slots.
    """
    for i in range(len(ids)):
        slots[i] = FREE
        at = _probe(ids[i], places, slot_ids)
        if places[at] == FREE:
            if num_used == len(slot_ids):
                continue
            places[at] = num_used
            slot_ids[num_used] = ids[i]
            num_used += 1
        slot = places[at]
        if not is_filled[slot]:
            is_filled[slot] = True
            slots[i] = slot
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
