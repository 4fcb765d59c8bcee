"""Kernels that copy feature rows from graph partitions and replies into a batch."""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def copy_rows(ids, offsets, parts, out):
    """Copy rows from a few graph partitions.

    Finding the partition of each id is faster than one pass over all ids per partition, because
    rows are written in order.

    Args:
        ids: Ids of the requested rows.
        offsets: First id of each partition, followed by the end of the last.
        parts: Tuple of the rows of every partition, as words.
        out: Receives one row per id, as words.
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
    """Copy the rows of the ids at some positions, all owned by one partition."""
    num_words = values.shape[1]
    for i in positions:
        row = ids[i] - first
        for j in range(num_words):
            out[i, j] = values[row, j]


@njit(nogil=True, cache=True)
def place_rows(positions, rows, values, out):
    """Copy selected rows of a reply to their positions."""
    num_words = values.shape[1]
    for i in range(len(positions)):
        for j in range(num_words):
            out[positions[i], j] = values[rows[i], j]


@njit(nogil=True, cache=True)
def shift_rows(rows, ends, shifts, out):
    """Convert row numbers of a sub-batch to row numbers of the batch.

    `ends` holds the end of each hop's rows in the sub-batch, `shifts` the offset to add for each
    hop.
    """
    for i in range(len(rows)):
        hop = 0
        while rows[i] >= ends[hop]:
            hop += 1
        out[i] = rows[i] + shifts[hop]
