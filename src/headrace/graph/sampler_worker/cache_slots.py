"""Memory of cached rows: slots of one size, or rows of different sizes one after another."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from headrace.core.errors import DamagedGraphError
from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.format.row_codec import RowCodec, SparseRows
from headrace.graph.kernels.encoding import fit_rows, move_sparse
from headrace.graph.kernels.gathering import place_rows


class CachedRows(Protocol):
    """Rows of a request; those that are not cached are still missing."""

    def complete(self, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Add the missing rows at their positions; returns all rows as a store sends them."""
        ...


class CacheSlots(Protocol):
    """Rows by slot."""

    @property
    def memory_bytes(self) -> int:
        """Size of the memory."""
        ...

    def read(self, slots: np.ndarray, positions: np.ndarray, num_rows: int) -> CachedRows:
        """Copy rows to positions of a request."""
        ...

    def write(self, slots: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Copy rows of a reply to empty slots, or -1; returns the slots that had no room."""
        ...

    def clear(self, slots: np.ndarray) -> None:
        """Empty some slots."""
        ...


def make_slots(info: ColumnInfo, num_slots: int, num_bytes: int) -> CacheSlots:
    """Slots for the stored rows of a column; `num_bytes` limits rows of different sizes."""
    codec = info.codec
    if codec is None:
        dtype = np.dtype(np.uint16 if info.dtype == "bfloat16" else info.dtype)
        return FixedSlots(num_slots, info.shape, dtype)
    if codec.is_sparse:
        return SparseSlots(num_slots, num_bytes, codec)
    return FixedSlots(num_slots, (codec.stored_width,), np.dtype(np.uint8))


class FixedSlots:
    """Slots of one size."""

    def __init__(self, num_slots: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._shape, self._dtype = shape, dtype
        num_bytes = math.prod(shape) * dtype.itemsize
        size = next(size for size in (8, 4, 2, 1) if num_bytes % size == 0)
        self._rows = np.empty((num_slots, num_bytes // size), f"u{size}")

    @property
    def memory_bytes(self) -> int:
        """Size of the memory."""
        return self._rows.nbytes

    def read(self, slots: np.ndarray, positions: np.ndarray, num_rows: int) -> _FixedRows:
        """Copy rows to positions of a request."""
        words = np.empty((num_rows, self._rows.shape[1]), self._rows.dtype)
        place_rows(positions, slots, self._rows, words)
        return _FixedRows(words, self._shape, self._dtype)

    def write(self, slots: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Copy rows of a reply to empty slots, or -1."""
        _check(values, len(slots), self._shape, self._dtype)
        rows = np.flatnonzero(slots >= 0)
        place_rows(slots[rows], rows, _words_of(values, self._rows), self._rows)
        return slots[:0]

    def clear(self, slots: np.ndarray) -> None:
        """Empty some slots."""


class _FixedRows:
    def __init__(self, words: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._words, self._shape, self._dtype = words, shape, dtype

    def complete(self, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
        words = self._words
        if len(positions):
            _check(values, len(positions), self._shape, self._dtype)
            place_rows(positions, np.arange(len(values)), _words_of(values, words), words)
        return words.view(self._dtype).reshape(len(words), *self._shape)


def _check(values: np.ndarray, num_rows: int, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """Kernels do not check bounds."""
    if values.shape != (num_rows, *shape) or values.dtype != dtype:
        raise DamagedGraphError(
            f"a store sent {values.dtype} {values.shape} instead of {dtype} {(num_rows, *shape)}",
            "use the same graph on all machines",
        )


def _words_of(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    if flat.ctypes.data % like.itemsize:
        flat = flat.copy()
    return flat.view(like.dtype)


class SparseSlots:
    """Rows of different sizes, one after another; if it is full, cleared ones are closed up.

    Args:
        num_slots: Number of rows at most.
        num_bytes: Size of all rows at most.
        codec: Finds the rows in a reply.
    """

    def __init__(self, num_slots: int, num_bytes: int, codec: RowCodec) -> None:
        self._codec = codec
        self._units = np.empty(max(num_bytes // 2, 0), np.uint16)
        self._begins = np.zeros(num_slots, np.int64)
        self._lengths = np.zeros(num_slots, np.int64)
        self._end = self._num_cleared = 0

    @property
    def memory_bytes(self) -> int:
        """Size of the memory."""
        return sum(array.nbytes for array in (self._units, self._begins, self._lengths))

    def read(self, slots: np.ndarray, positions: np.ndarray, num_rows: int) -> _SparseFound:
        """Copy rows to positions of a request."""
        return _SparseFound(self._rows_at(slots), positions, num_rows, self._codec)

    def write(self, slots: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Copy rows of a reply to empty slots, or -1; returns the slots that had no room."""
        found, rows = self._codec.split(values, len(slots)), np.flatnonzero(slots >= 0)
        slots = slots[rows]
        lengths = np.diff(found.starts)[rows]
        if self._num_cleared and self._end + int(lengths.sum()) > len(self._units):
            self._close_up()
        targets = np.empty(len(rows), np.int64)
        self._end = fit_rows(lengths, self._end, len(self._units), targets)
        fits = targets >= 0
        move_sparse(found.units, found.starts, rows[fits], targets[fits], self._units)
        self._begins[slots[fits]], self._lengths[slots[fits]] = targets[fits], lengths[fits]
        return slots[~fits]

    def clear(self, slots: np.ndarray) -> None:
        """Empty some slots."""
        self._num_cleared += int(self._lengths[slots].sum())
        self._lengths[slots] = 0

    def _rows_at(self, slots: np.ndarray) -> SparseRows:
        """Copy the rows of some slots."""
        lengths = self._lengths[slots]
        starts = np.append(0, np.cumsum(lengths))
        units = np.empty(int(starts[-1]), np.uint16)
        self._move(slots, starts[:-1], units)
        return SparseRows(units, starts)

    def _close_up(self) -> None:
        """Move all rows towards the beginning, in their order, so that none is overwritten."""
        used = np.flatnonzero(self._lengths)
        used = used[np.argsort(self._begins[used])]
        starts = np.append(0, np.cumsum(self._lengths[used]))
        self._move(used, starts[:-1], self._units)
        self._begins[used] = starts[:-1]
        self._end, self._num_cleared = int(starts[-1]), 0

    def _move(self, slots: np.ndarray, targets: np.ndarray, out: np.ndarray) -> None:
        begins = self._begins[slots]
        ends = np.stack([begins, begins + self._lengths[slots]], axis=1).ravel()
        move_sparse(self._units, ends, 2 * np.arange(len(slots)), targets, out)


class _SparseFound:
    def __init__(
        self, rows: SparseRows, positions: np.ndarray, num_rows: int, codec: RowCodec
    ) -> None:
        self._rows, self._positions = rows, positions
        self._num_rows, self._codec = num_rows, codec

    def complete(self, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
        missing = self._codec.split(values, len(positions))
        lengths = np.zeros(self._num_rows, np.int64)
        for rows, at in ((self._rows, self._positions), (missing, positions)):
            lengths[at] = np.diff(rows.starts)
        targets = np.cumsum(lengths) - lengths
        units = np.empty(int(lengths.sum()), np.uint16)
        for rows, at in ((self._rows, self._positions), (missing, positions)):
            move_sparse(rows.units, rows.starts, np.arange(len(at)), targets[at], units)
        return units
