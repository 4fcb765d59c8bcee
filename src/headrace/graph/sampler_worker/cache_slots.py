"""Memory of cached rows: slots of one size, or rows of different sizes one after another."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.format.row_codec import RowCodec, SparseRows
from headrace.graph.kernels.encoding import move_sparse
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
            place_rows(positions, np.arange(len(values)), _words_of(values, words), words)
        return words.view(self._dtype).reshape(len(words), *self._shape)


def _words_of(values: np.ndarray, like: np.ndarray) -> np.ndarray:
    flat = np.ascontiguousarray(values).reshape(len(values), -1)
    if flat.ctypes.data % like.itemsize:
        flat = flat.copy()
    return flat.view(like.dtype)


class SparseSlots:
    """Rows of different sizes, one after another; cleared ones are moved together when it is full.

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
        self._end = 0

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
        if self._end + int(lengths.sum()) > len(self._units):
            self._compact()
        targets = self._end + np.cumsum(lengths) - lengths
        fits = targets + lengths <= len(self._units)
        move_sparse(found.units, found.starts, rows[fits], targets[fits], self._units)
        self._begins[slots[fits]], self._lengths[slots[fits]] = targets[fits], lengths[fits]
        self._end += int(lengths[fits].sum())
        return slots[~fits]

    def clear(self, slots: np.ndarray) -> None:
        """Empty some slots."""
        self._lengths[slots] = 0

    def _rows_at(self, slots: np.ndarray) -> SparseRows:
        """Copy the rows of some slots."""
        lengths = self._lengths[slots]
        starts = np.append(0, np.cumsum(lengths))
        units = np.empty(int(starts[-1]), np.uint16)
        ends = np.stack([self._begins[slots], self._begins[slots] + lengths], axis=1).ravel()
        move_sparse(self._units, ends, 2 * np.arange(len(slots)), starts[:-1], units)
        return SparseRows(units, starts)

    def _compact(self) -> None:
        used = np.flatnonzero(self._lengths)
        rows = self._rows_at(used)
        self._end = len(rows.units)
        self._units[: self._end] = rows.units
        self._begins[used] = rows.starts[:-1]


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
