"""Write-ahead log that makes row changes atomic if the process is killed.

A change is logged before it is applied. A restarted process applies the last complete change again.
Two files alternate, so that one is complete at any time. The log does not survive a machine crash;
training then resumes from a checkpoint.
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
_EMPTY_HEADER = bytes(_HEADER.size)


@dataclass(frozen=True)
class Change:
    """Rows, their values and states, and counts of the embedding after a change."""

    num_rounds: int
    num_steps: int
    rows: np.ndarray
    arrays: Sequence[np.ndarray]


class WriteAheadLog:
    """Last changes of one embedding, in two files of a directory."""

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / f"journal{i}" for i in (0, 1)]
        self._count = 0

    def clear(self) -> None:
        """Delete the log."""
        for path in self._paths:
            path.unlink(missing_ok=True)

    def append(self, change: Change) -> None:
        """Write a change; the header, written last, marks it complete."""
        count = self._count + 1
        path = self._paths[count % 2]
        path.touch()
        with path.open("r+b") as file:
            file.write(_EMPTY_HEADER)
            # Flushed data survives the process: it is in the page cache.
            file.flush()
            header = (count, change.num_rounds, change.num_steps, len(change.rows))
            crc = _begin_crc(header)
            for array in (change.rows.astype(np.int64, copy=False), *change.arrays):
                data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                file.write(data)
                crc = zlib.crc32(data, crc)
            file.flush()
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, *header, crc))
        # Not before: the next change must replace an incomplete one, not the last complete one.
        self._count = count

    def last(self, dim: int, num_arrays: int) -> Change | None:
        """The last complete change; None before the first."""
        found = [self._read(path, dim, num_arrays) for path in self._paths]
        complete = [each for each in found if each is not None]
        if not complete:
            return None
        self._count, change = max(complete, key=lambda each: each[0])
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
        # A file is longer if it held a larger change before.
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
