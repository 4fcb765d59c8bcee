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
            raise DamagedGraphError("sparse rows have invalid offsets")
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
        name: Name of the column, for messages.
    """

    def __init__(self, encoding: Encoding, dtype: str, width: int, name: str = "x") -> None:
        self.kind = encoding.kind
        self._width, self._name = width, name
        word = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        is_float = self.kind in _LEVELS or self.kind == "float16"
        self._word = np.dtype(np.float32 if is_float else f"u{word.itemsize}")
        self._words = [self._word.type(each) for each in encoding.words]
        self._constant = np.uint64(encoding.words[0] if encoding.words else 0)
        self._position_units = 2 if width >= kernels.WIDE else 1
        self._value_units = 0 if self._words else self._word.itemsize // 2

    @property
    def is_sparse(self) -> bool:
        """Whether rows have different lengths."""
        return self.kind == "sparse"

    @property
    def stored_width(self) -> int:
        """Bytes of a stored row, unless rows are sparse."""
        assert not self.is_sparse
        if self.kind == "bits":
            return -(-self._width // 8)
        if self.kind == "float16":
            return 2 * self._width
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
            SpecError: A row cannot be stored like this; `first` is the number of the first row, for
                the message.
        """
        flat = self._flat(rows)
        if self.is_sparse:
            encoded = np.empty(int(self.lengths(rows).sum()), np.uint16)
            wrong = kernels.encode_sparse(flat, self._value_units, self._constant, encoded)
        elif self.kind == "float16":
            with np.errstate(over="ignore"):
                encoded = flat.astype(np.float16)
            is_same = encoded.astype(np.float32).view(np.uint32) == flat.view(np.uint32)
            wrong = -1 if is_same.all() else int(np.argmin(is_same.all(axis=1)))
            encoded = encoded.view(np.uint8)
        else:
            encoded = np.zeros((len(rows), self.stored_width), np.uint8)
            if self.kind == "bits":
                zero, one = self._words
                wrong = kernels.encode_bits(flat, zero, one, encoded)
            else:
                levels = _LEVELS[self.kind]
                wrong = kernels.encode_quantised(flat, levels, encoded, encoded.view(np.float32))
        if wrong < 0:
            return encoded
        if self.kind in _LEVELS:
            raise SpecError(
                f"row {first + wrong} of {self._name!r} has a value or a range that is not finite "
                f"in float32, which {self.kind} cannot store",
                "replace it, or partition without `--features`",
            )
        raise SpecError(
            f"row {first + wrong} of {self._name!r} changed while it was read", "try again"
        )

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
            if not kernels.decode_sparse(
                found.units, found.starts, rows, positions, self._value_units, self._constant,
                target,
            ):  # fmt: skip
                raise DamagedGraphError(f"a sparse row of {self._name!r} is damaged")
            return
        assert isinstance(stored, np.ndarray)
        is_shaped = stored.shape[1:] == (self.stored_width,) and stored.dtype == np.uint8
        if not is_shaped or rows.max() >= len(stored):
            raise DamagedGraphError(
                f"rows of {self._name!r} are {stored.dtype} {stored.shape}, not {self.kind} of "
                f"{self._width} values"
            )
        if self.kind == "bits":
            zero, one = self._words
            kernels.decode_bits(stored, rows, positions, zero, one, target)
            return
        if stored.ctypes.data % 4 or not stored.flags.c_contiguous:
            stored = np.copy(stored)
        if self.kind == "float16":
            target[positions] = stored.view(np.float16)[rows]
            return
        kernel = kernels.decode_bytes if self.kind == "int8" else kernels.decode_nibbles
        kernel(stored, stored.view(np.float32), rows, positions, target)

    def split(self, units: np.ndarray, num_rows: int) -> SparseRows:
        """Find the rows in all their units; raise DamagedGraphError if they do not fit."""
        starts = np.empty(num_rows + 1, np.int64)
        is_flat = units.dtype == np.uint16 and units.ndim == 1
        if not is_flat or not kernels.find_starts(units, self._width, self._value_units, starts):
            raise DamagedGraphError(f"sparse rows of {self._name!r} do not have their size")
        return SparseRows(units, starts)

    def _flat(self, rows: np.ndarray) -> np.ndarray:
        assert rows.flags.c_contiguous
        flat: np.ndarray = rows.reshape(len(rows), self._width)
        return flat.view(self._word)


@lru_cache(maxsize=256)
def codec(
    encoding: Encoding | None, dtype: str, shape: tuple[int, ...], name: str
) -> RowCodec | None:
    """Codec of a column; None if its rows are stored as they are."""
    return None if encoding is None else RowCodec(encoding, dtype, math.prod(shape), name)
