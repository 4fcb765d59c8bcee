"""Raw array files: written in any order, verified by checksum, memory-mapped without a copy."""

from __future__ import annotations

import errno
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import cast

import numpy as np

from headrace.core.errors import SpecError
from headrace.core.units import format_bytes
from headrace.graph.format.manifest import CHUNK_BYTES, DTypeName, FileInfo, numpy_dtype

_READ_BYTES = 1 << 22

_SYNC_BYTES = 1 << 20
"""Larger files are fsynced. For smaller ones an fsync takes longer than the write (10 ms on a busy
disk); their checksum detects loss after a power failure."""


class SplitArray:
    """One array whose rows are distributed over the files of several partitions.

    Args:
        folder: Directory of the partitioned graph.
        paths: One file per partition, relative to the folder.
        bounds: Partition `p` has the rows from `bounds[p]` to `bounds[p + 1]`.
        dtype: As in a manifest.
        row_shape: Shape of one row.
    """

    def __init__(
        self,
        folder: Path,
        paths: Sequence[str],
        bounds: np.ndarray,
        dtype: str,
        row_shape: tuple[int, ...] = (),
    ) -> None:
        self._folder = folder
        self._paths = paths
        self._bounds = bounds
        self.dtype = dtype
        self._row_shape = row_shape
        self._row_bytes = numpy_dtype(dtype).itemsize * math.prod(row_shape)
        for path, num_rows in zip(paths, np.diff(bounds).tolist(), strict=True):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (folder / path).open("ab") as file:
                file.truncate(num_rows * self._row_bytes)

    def put(self, starts: np.ndarray, lengths: np.ndarray, rows: np.ndarray) -> None:
        """Write runs of consecutive rows at their positions.

        Args:
            starts: First row of every run, ascending; at least one.
            lengths: Number of rows of each run.
            rows: The rows of all runs, concatenated.
        """
        ends = starts + lengths
        # Adjacent runs are merged into one write.
        breaks = np.flatnonzero(starts[1:] != ends[:-1])
        firsts = starts[np.append(0, breaks + 1)].tolist()
        lasts = ends[np.append(breaks, len(ends) - 1)].tolist()
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        at = 0
        for first, last in zip(firsts, lasts, strict=True):
            while first < last:
                part = int(np.searchsorted(self._bounds, first, side="right")) - 1
                stop = min(last, int(self._bounds[part + 1]))
                size = (stop - first) * self._row_bytes
                offset = (first - int(self._bounds[part])) * self._row_bytes
                _write_at(self._folder / self._paths[part], data[at : at + size], offset)
                at += size
                first = stop

    def seal(self) -> dict[str, FileInfo]:
        """Describe all files after the last write."""
        files = {}
        for path, num_rows in zip(self._paths, np.diff(self._bounds).tolist(), strict=True):
            shape = (num_rows, *self._row_shape)
            files[path] = _describe(self._folder / path, self.dtype, shape)
        return files


def write_array(folder: Path, path: str, values: np.ndarray) -> dict[str, FileInfo]:
    """Write one array to one file and describe it."""
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    dtype = values.dtype.name
    values.astype(numpy_dtype(dtype), copy=False).tofile(folder / path)
    return {path: _describe(folder / path, dtype, values.shape)}


def map_array(path: Path, info: FileInfo) -> np.ndarray:
    """Memory-map a file, read-only.

    Raises:
        SpecError: The file is missing or does not have the expected size.
    """
    remedy = "partition the graph again, or copy the directory again"
    try:
        num_bytes = path.stat().st_size
    except OSError:
        raise SpecError(f"{path} is missing", remedy) from None
    if num_bytes != info.bytes:
        raise SpecError(f"{path} has {num_bytes} bytes instead of {info.bytes}", remedy)
    dtype = numpy_dtype(info.dtype)
    if dtype.itemsize * math.prod(info.shape) != info.bytes:
        raise SpecError(
            f"{info.bytes} bytes of {path} do not fit {info.dtype} {info.shape}", remedy
        )
    if info.bytes == 0:
        # An empty file cannot be mapped.
        empty = np.empty(info.shape, dtype)
        empty.flags.writeable = False
        return empty
    return np.memmap(path, dtype, "r", shape=info.shape).view(np.ndarray)


def crc32_of(path: Path) -> int:
    """CRC-32 of a file, read in small blocks."""
    crc = 0
    for piece in _pieces(path):
        crc = zlib.crc32(piece, crc)
    return crc


def chunks_of(path: Path) -> tuple[int, ...]:
    """CRC-32 of each chunk of a file; empty if it has only one chunk."""
    if path.stat().st_size <= CHUNK_BYTES:
        return ()
    chunks, num_bytes = [0], 0
    for piece in _pieces(path):
        if num_bytes and num_bytes % CHUNK_BYTES == 0:
            chunks.append(0)
        chunks[-1] = zlib.crc32(piece, chunks[-1])
        num_bytes += len(piece)
    return tuple(chunks)


def _pieces(path: Path) -> Iterator[memoryview]:
    """Read a file in blocks into one reused buffer; chunks are multiples of blocks."""
    buffer = memoryview(bytearray(min(_READ_BYTES, path.stat().st_size)))
    with path.open("rb", buffering=0) as file:
        num_bytes = 0
        while buffer and (read := file.readinto(buffer[num_bytes:])):
            num_bytes += read
            if num_bytes == len(buffer):
                yield buffer
                num_bytes = 0
        if num_bytes:
            yield buffer[:num_bytes]


def damage_of(path: Path, name: str, info: FileInfo) -> str:
    """Describe the damage of a file, called `name` in the message; empty if it is intact."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes != info.bytes:
            return f"{name} has {num_bytes} bytes instead of {info.bytes}"
        if info.chunks:
            return _damaged_chunk(name, chunks_of(path), info.chunks)
        crc32 = crc32_of(path)
    except FileNotFoundError:
        return f"{name} is missing"
    except OSError as error:
        return f"{name} cannot be read: {error.strerror}"
    if crc32 != info.crc32:
        return f"{name} has the checksum {crc32:08x} instead of {info.crc32:08x}"
    return ""


def _damaged_chunk(name: str, found: Sequence[int], expected: Sequence[int]) -> str:
    for number, (one, other) in enumerate(zip_longest(found, expected)):
        if one != other:
            start = number * CHUNK_BYTES
            return f"{name} has a wrong checksum from byte {start} to {start + CHUNK_BYTES}"
    return ""


def is_intact(path: Path, info: FileInfo) -> bool:
    """Whether a file exists and matches its checksum."""
    return not damage_of(path, path.name, info)


def check_space(folder: Path, needed_bytes: int) -> None:
    """Check for enough disk space before writing.

    Args:
        folder: Output directory; the size of its existing files counts as free.
        needed_bytes: Total size of all files.

    Raises:
        SpecError: The free space is too small.
    """
    free_bytes = shutil.disk_usage(folder).free
    there = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    if needed_bytes > free_bytes + there:
        raise SpecError(_disk_is_full(folder, needed_bytes, free_bytes + there), _MAKE_ROOM)


@contextmanager
def reporting_full_disk(folder: Path, needed_bytes: int) -> Iterator[None]:
    """Convert the OS error for a full disk into a SpecError that states the needed space."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        free_bytes = shutil.disk_usage(folder).free
        raise SpecError(_disk_is_full(folder, needed_bytes, free_bytes), _MAKE_ROOM) from None


_MAKE_ROOM = "free disk space, choose another disk, or store features as auto, float16 or int8"


def _disk_is_full(folder: Path, needed_bytes: int, free_bytes: int) -> str:
    return (
        f"the disk is full: {folder} needs {format_bytes(needed_bytes)}, "
        f"{format_bytes(free_bytes)} are free"
    )


def _write_at(path: Path, data: memoryview, offset: int) -> None:
    # Not through a memory map: a full disk would kill the process with SIGBUS.
    fd = os.open(path, os.O_WRONLY)
    try:
        while data:
            num_bytes = os.pwrite(fd, data, offset)
            data, offset = data[num_bytes:], offset + num_bytes
    finally:
        os.close(fd)


def _describe(path: Path, dtype: str, shape: tuple[int, ...]) -> FileInfo:
    crc32, num_bytes = crc32_of(path), path.stat().st_size
    if num_bytes >= _SYNC_BYTES:
        with path.open("rb") as file:
            os.fsync(file.fileno())
    # Without validation, which takes longer than the writes for thousands of files.
    return FileInfo.model_construct(
        dtype=cast("DTypeName", dtype),
        shape=shape,
        bytes=num_bytes,
        crc32=crc32,
        chunks=chunks_of(path),
    )
