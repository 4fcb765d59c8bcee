"""Row numbers of one part of a batch as row numbers of the whole."""

from __future__ import annotations

from numba import njit


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
