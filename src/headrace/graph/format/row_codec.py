"""Encoding and decoding of the rows of a column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from headrace.core.errors import DamagedGraphError, SpecError
from headrace.graph.format.encoding import Encoding
from headrace.graph.kernels import encoding as kernels

_LEVELS = {"int8": 255, "int4": 15}
_REMEDY = "copy or partition the graph again; `headrace graph verify` checks all of it"


@dataclass(frozen=True)
class SparseRows:
    """Rows of different lengths: row `i` has the units from `starts[i]` to `starts[i + 1]`."""

    units: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        """Size of the rows without their offsets."""
        return self.units.nbytes

    def take(self, rows: np.ndarray) -> np.ndarray:
        """Concatenate some rows, whose numbers are in range."""
        out = np.empty(self.num_units(rows), np.uint16)
        if not kernels.copy_sparse(self.units, self.starts, rows, out):
            raise DamagedGraphError("sparse rows have invalid offsets", _REMEDY)
        return out

    def num_units(self, rows: np.ndarray) -> int:
        """Number of 16-bit units of some rows."""
        return int(np.sum(self.starts[rows + 1] - self.starts[rows]))


StoredRows = np.ndarray | SparseRows
"""Rows of a column as they are stored: one array row each, or of different lengths."""


class RowCodec:
    """Encodes and decodes rows of a column.

    Args:
        encoding: How rows are stored.
        dtype: Dtype of decoded values, as in a manifest.
        width: Values per row.
    """

    def __init__(self, encoding: Encoding, dtype: str, width: int) -> None:
        self.kind = encoding.kind
        self._width = width
        word = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        self._word = np.dtype(np.float32 if self.kind in _LEVELS else f"u{word.itemsize}")
        self._words = [np.uint64(each) for each in encoding.words]
        self._position_units = 2 if width >= kernels.WIDE else 1
        self._value_units = 0 if self._words else self._word.itemsize // 2

    @property
    def is_sparse(self) -> bool:
        """Whether rows have different lengths."""
        return self.kind == "sparse"

    @property
    def stored_width(self) -> int:
        """Bytes of a stored row; rows of `sparse` columns have none in common."""
        if self.kind == "bits":
            return -(-self._width // 8)
        num_bytes = self._width if self.kind == "int8" else -(-self._width // 2)
        # Headers are read as float32.
        return kernels.HEADER_BYTES + -(-num_bytes // 4) * 4

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Number of 16-bit units of `sparse` rows."""
        counts = np.empty(len(rows), np.int64)
        kernels.count_nonzero(self._flat(rows), counts)
        return self._position_units + counts * (self._position_units + self._value_units)

    def encode(self, rows: np.ndarray, first: int = 0) -> np.ndarray:
        """Encode rows: one array row each, or all units of `sparse` rows.

        Raises:
            SpecError: A value is not finite and the encoding is not lossless; `first` is the number
                of the first row, for the message.
        """
        flat = self._flat(rows)
        if self.is_sparse:
            units = np.empty(int(self.lengths(rows).sum()), np.uint16)
            kernels.encode_sparse(flat, self._value_units, units)
            return units
        encoded = np.zeros((len(rows), self.stored_width), np.uint8)
        if self.kind == "bits":
            kernels.encode_bits(flat, self._cast(self._words[1]), encoded)
            return encoded
        wrong = kernels.encode_quantised(
            flat, _LEVELS[self.kind], encoded, encoded.view(np.float32)
        )
        if wrong >= 0:
            raise SpecError(
                f"row {first + wrong} has a value that is not finite, which {self.kind} cannot "
                "store",
                "replace it, or store the features as float16 or auto",
            )
        return encoded

    def decode(
        self, stored: StoredRows, rows: np.ndarray, positions: np.ndarray, out: np.ndarray
    ) -> None:
        """Decode some rows to positions of an array of decoded rows.

        Args:
            stored: Rows; those of a `sparse` reply may be all their units.
            rows: Numbers of the rows to decode, in range.
            positions: Where each of them goes.
            out: Decoded rows.

        Raises:
            DamagedGraphError: Rows are not encoded like this.
        """
        if len(rows) == 0:
            return
        target = self._flat(out)
        if self.is_sparse:
            found = stored
            if isinstance(stored, np.ndarray):
                found = self.split(stored, int(rows.max()) + 1)
            assert isinstance(found, SparseRows)
            word = self._words[0] if self._words else np.uint64(0)
            if not kernels.decode_sparse(
                found.units, found.starts, rows, positions, self._value_units, word, target
            ):
                raise DamagedGraphError("a sparse row is damaged", _REMEDY)
            return
        assert isinstance(stored, np.ndarray)
        is_shaped = stored.shape[1:] == (self.stored_width,) and stored.dtype == np.uint8
        if not is_shaped or rows.max() >= len(stored):
            raise DamagedGraphError(
                f"rows are {stored.dtype} {stored.shape}, not {self.kind} of {self._width} values",
                _REMEDY,
            )
        if self.kind == "bits":
            zero, one = (self._cast(word) for word in self._words)
            kernels.decode_bits(stored, rows, positions, zero, one, target)
            return
        if stored.ctypes.data % 4 or not stored.flags.c_contiguous:
            stored = np.copy(stored)
        kernel = kernels.decode_bytes if self.kind == "int8" else kernels.decode_nibbles
        kernel(stored, stored.view(np.float32), rows, positions, target)

    def split(self, units: np.ndarray, num_rows: int) -> SparseRows:
        """Find the rows in all their units; raise DamagedGraphError if they do not fit."""
        starts = np.empty(num_rows + 1, np.int64)
        if units.dtype != np.uint16 or not kernels.find_starts(
            units, self._width, self._value_units, starts
        ):
            raise DamagedGraphError("sparse rows do not have their size", _REMEDY)
        return SparseRows(units, starts)

    def _flat(self, rows: np.ndarray) -> np.ndarray:
        assert rows.flags.c_contiguous
        flat: np.ndarray = rows.reshape(len(rows), self._width)
        return flat.view(self._word)

    def _cast(self, word: np.uint64) -> np.generic:
        cast: np.generic = self._word.type(word)
        return cast


@lru_cache(maxsize=256)
def codec(encoding: Encoding | None, dtype: str, shape: tuple[int, ...]) -> RowCodec | None:
    """Codec of a column; None if its rows are stored as they are."""
    return None if encoding is None else RowCodec(encoding, dtype, math.prod(shape))
