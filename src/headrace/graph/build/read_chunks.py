"""Reading all rows of a column in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.schema import Column

_CHUNK_BYTES = 1 << 26
_CHUNK_ROWS = 1 << 21


def read_chunks(column: Column, num_rows: int) -> Iterator[tuple[int, np.ndarray]]:
    """Read all rows of a column in order; yields first row numbers and blocks of rows."""
    row_bytes = np.dtype(column.dtype).itemsize * math.prod(column.shape)
    step = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // max(1, row_bytes)))
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        rows = np.asarray(column.read(start, stop))
        if rows.shape != (stop - start, *column.shape) or rows.dtype != column.dtype:
            raise SpecError(
                f"column {column.name!r} returned {rows.dtype} {rows.shape} for rows {start} to "
                f"{stop} instead of {column.dtype} {(stop - start, *column.shape)}",
                "check that its file is complete",
            )
        yield start, rows
