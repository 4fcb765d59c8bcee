"""A table of rows by id, with free places in between (open addressing)."""

from __future__ import annotations

import numpy as np
from numba import njit

from headrace.graph.kernels.rng import GOLDEN

FREE = -1


@njit(forceinline=True)
def _probe(node, places, slot_ids):
    """Place of an id in the table, or the free one where it belongs."""
    mask = np.uint64(len(places) - 1)
    spread = np.uint64(node) * GOLDEN
    at = (spread ^ (spread >> np.uint64(32))) & mask
    while places[at] != FREE and slot_ids[places[at]] != node:
        at = (at + np.uint64(1)) & mask
    return at


@njit(nogil=True, cache=True)
def enter_slots(slot_ids, places):
    """Fill an empty table with the slots that have an id."""
    for slot in range(len(slot_ids)):
        if slot_ids[slot] != FREE:
            places[_probe(slot_ids[slot], places, slot_ids)] = slot


@njit(nogil=True, cache=True)
def take_rows(ids, places, slot_ids, is_filled, rows, counters, out, misses):
    """Copy the rows that are there, and list the others.

    Args:
        ids: Wanted.
        places: Slots, or `FREE`; a power of two, at least one and a half times the slots.
        slot_ids: Id of each slot, or `FREE`.
        is_filled: Whether a slot has its row yet.
        rows: By slot.
        counters: How often ids were wanted, by id modulo their number; all are halved when one
            would not fit its byte. None to count nothing.
        out: Out: a row per id.
        misses: Out: positions of ids whose rows are not there.

    Returns:
        How many misses there are.
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
    """Keep rows of ids that have a slot, and of others as long as slots are unused.

    Args:
        ids: Of the rows.
        values: The rows.
        num_used: Slots from here on were never used.
        places: As for `take_rows`.
        slot_ids: As for `take_rows`.
        is_filled: As for `take_rows`.
        rows: By slot.

    Returns:
        How many slots are used now.
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
    """Add up how likely each source of another part is drawn from each of a part's nodes.

    Args:
        indptr: Of the part's in-edges.
        indices: Their sources.
        fanout: Neighbours drawn of a node; -1 for all.
        halo: Sources that other parts own, ascending.
        expected: Per source of `halo`; added to.
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
    """A 64-bit hash per text (FNV-1a, then SplitMix64's finaliser).

    Args:
        data: Bytes of all texts, `uint8`.
        offsets: Where each begins in `data`; one more.
        seed: Another seed gives other hashes.
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
