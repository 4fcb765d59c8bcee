"""Copy rows of values from the parts that have them to where a batch wants them."""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def copy_rows(ids, offsets, parts, out):
    """Copy rows from a few parts.

    Looking for the owner of each id is faster than a pass over all ids per part: rows are then
    written in order.

    Args:
        ids: Of the wanted rows.
        offsets: Where the ids of each part begin; one more than parts.
        parts: Rows of every part, as words; a tuple.
        out: A row per id, as words.
    """
    num_words = out.shape[1]
    for i in range(len(ids)):
        part = 0
        while ids[i] >= offsets[part + 1]:
            part += 1
        values, row = parts[part], ids[i] - offsets[part]
        for j in range(num_words):
            out[i, j] = values[row, j]


@njit(nogil=True, cache=True)
def copy_at(positions, ids, first, values, out):
    """Copy the rows of the ids at some positions, all of which one part owns."""
    num_words = values.shape[1]
    for i in positions:
        row = ids[i] - first
        for j in range(num_words):
            out[i, j] = values[row, j]


@njit(nogil=True, cache=True)
def place_rows(positions, rows, values, out):
    """Copy chosen rows of a reply to their positions."""
    num_words = values.shape[1]
    for i in range(len(positions)):
        for j in range(num_words):
            out[positions[i], j] = values[rows[i], j]


@njit(nogil=True, cache=True)
def shift_rows(rows, ends, shifts, out):
    """Move row numbers to where the whole batch has the rows of their hop.

    Args:
        rows: Of one part.
        ends: Where the rows of each hop end in the part.
        shifts: How far the rows of each hop move.
        out: Out: rows of the whole.
    """
    for i in range(len(rows)):
        hop = 0
        while rows[i] >= ends[hop]:
            hop += 1
        out[i] = rows[i] + shifts[hop]
