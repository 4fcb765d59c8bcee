"""Columns of files that support only sequential reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


class RowStream:
    """Random access to rows of a sequential stream.

    Ascending ranges take one pass; a lower row restarts at the nearest seekable row.

    Args:
        dtype: Dtype of the rows.
        shape: Shape of one row.
        begin: Returns the last seekable row at or before the given one.
        rows_from: Iterates over blocks of rows, from a seekable row to the end.
    """

    def __init__(
        self,
        dtype: np.dtype,
        shape: tuple[int, ...],
        begin: Callable[[int], int],
        rows_from: Callable[[int], Iterator[np.ndarray]],
    ) -> None:
        self._dtype = dtype
        self._shape = shape
        self._begin = begin
        self._rows_from = rows_from
        self._pieces: Iterator[np.ndarray] = iter(())
        self._piece = np.empty((0, *shape), dtype)
        # Before the first row, so that the first read starts the stream.
        self._first_row = -1

    def read(self, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop`; fewer at the end of the stream."""
        self._go_to(start)
        offset = start - self._first_row
        if stop - start <= len(self._piece) - offset:
            return self._piece[offset : offset + stop - start]
        rows = np.empty((stop - start, *self._shape), self._dtype)
        num_read = 0
        while num_read < len(rows):
            offset = start + num_read - self._first_row
            taken = self._piece[offset : offset + len(rows) - num_read]
            rows[num_read : num_read + len(taken)] = taken
            num_read += len(taken)
            if num_read < len(rows) and not self._advance():
                return rows[:num_read]
        return rows

    def _go_to(self, start: int) -> None:
        nearest = self._begin(start)
        if start < self._first_row or nearest > self._first_row + len(self._piece):
            self._pieces = self._rows_from(nearest)
            self._piece = self._piece[:0]
            self._first_row = nearest
        while start >= self._first_row + len(self._piece) and self._advance():
            pass

    def _advance(self) -> bool:
        following = next(self._pieces, None)
        if following is None:
            return False
        self._first_row += len(self._piece)
        self._piece = following
        return True
