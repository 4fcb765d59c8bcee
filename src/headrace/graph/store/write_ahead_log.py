"""What makes changes of rows whole, though their process may be killed in the middle of one.

A change is written down before it is made. Who starts again makes the last one that was written
down as a whole, be it for the second time. Two files take turns, so that one of them is whole at
any time. A machine that falls dead loses them: then a run goes on from a checkpoint.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_HEADER = struct.Struct("<8sQQQQI")
_MAGIC = b"HRJOURN2"
_NOTHING = bytes(_HEADER.size)


@dataclass(frozen=True)
class Change:
    """Rows as they are after a change.

    Attributes:
        num_rounds: Of the embedding after it.
        num_steps: The same.
        rows: Row numbers.
        arrays: Values and states of those rows, `float32`.
    """

    num_rounds: int
    num_steps: int
    rows: np.ndarray
    arrays: Sequence[np.ndarray]


class WriteAheadLog:
    """The last changes of one embedding.

    Args:
        folder: Of its two files.
    """

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / f"journal{i}" for i in (0, 1)]
        self._count = 0

    def clear(self) -> None:
        """Forget what is there."""
        for path in self._paths:
            path.unlink(missing_ok=True)

    def note(self, change: Change) -> None:
        """Write a change down; it is whole when the header says so."""
        self._count += 1
        path = self._paths[self._count % 2]
        path.touch()
        with path.open("r+b") as file:
            file.write(_NOTHING)
            # What was flushed is the system's, which outlives this process.
            file.flush()
            header = (self._count, change.num_rounds, change.num_steps, len(change.rows))
            crc = _begin_crc(header)
            for array in (change.rows.astype(np.int64, copy=False), *change.arrays):
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                file.write(data)
                crc = zlib.crc32(data, crc)
            file.flush()
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, *header, crc))

    def last(self, dim: int, num_arrays: int) -> Change | None:
        """The last change that is whole; none before the first."""
        found = [self._read(path, dim, num_arrays) for path in self._paths]
        whole = [each for each in found if each is not None]
        if not whole:
            return None
        self._count, change = max(whole, key=lambda each: each[0])
        return change

    def _read(self, path: Path, dim: int, num_arrays: int) -> tuple[int, Change] | None:
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) < _HEADER.size or not data.startswith(_MAGIC):
            return None
        _, *header, crc = _HEADER.unpack_from(data)
        count, num_rounds, num_steps, num_rows = header
        end = _HEADER.size + num_rows * (8 + 4 * num_arrays * dim)
        # A file may be longer: the change before was.
        if end > len(data) or crc != zlib.crc32(data[_HEADER.size : end], _begin_crc(header)):
            return None
        rows = np.frombuffer(data, np.int64, num_rows, _HEADER.size)
        numbers = np.frombuffer(
            data, np.float32, num_arrays * num_rows * dim, _HEADER.size + rows.nbytes
        )
        arrays = list(numbers.reshape(num_arrays, num_rows, dim))
        return count, Change(num_rounds, num_steps, rows, arrays)


def _begin_crc(header: Sequence[int]) -> int:
    return zlib.crc32(struct.pack("<4Q", *header))
