"""Copy rows of values from the parts that have them to where a batch wants them."""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def copy_owned(ids, first, values, out):
    """Copy the rows of all ids that one part owns; others are left alone.

    Args:
        ids: Of the wanted rows.
        first: Id of the part's first row.
        values: Rows of the part, as words.
        out: A row per id, as words.
    """
    num_rows, num_words = values.shape
    for i in range(len(ids)):
        row = ids[i] - first
        if 0 <= row < num_rows:
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
