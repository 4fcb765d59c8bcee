"""Arrays in npz files: memory-mapped if uncompressed, streamed if compressed."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.schema import Column
from headrace.graph.sources.chunks import RowStream

_PIECE_BYTES = 16 << 20
_LOCAL_HEADER_BYTES = 30
"""Size of a zip member's header before its name and extra field (APPNOTE 4.3.7)."""


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Load all arrays of a small file."""
    # Opened here because numpy does not close an invalid file.
    with _opened(path), path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def names_of(path: Path) -> list[str]:
    """Names of the arrays."""
    with _opened(path), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def open_column(path: Path, member: str, name: str) -> Column:
    """Open an array of a large file as a column."""
    with _opened(path), _member(path, member) as (_, shape, dtype, _header_bytes):
        if not shape:
            raise SpecError(f"{member} in {path} is a scalar", "give one row per node or edge")
    mapped = _mapped(path, member)
    if mapped is not None:
        return Column.of(name, mapped)
    row_shape = shape[1:]

    def rows_from(_: int) -> Iterator[np.ndarray]:
        return _pieces(path, member, shape[0], row_shape, 0)

    stream = RowStream(dtype, row_shape, lambda _: 0, rows_from)
    return Column(name, dtype, row_shape, stream.read)


def stream_rows(path: Path, member: str, row: int) -> tuple[int, Iterator[np.ndarray]]:
    """Length and blocks of one row of a two-dimensional array, such as an `edge_index`."""
    with _opened(path), _member(path, member) as (_, shape, _dtype, _header_bytes):
        if len(shape) != 2 or shape[0] <= row:
            raise SpecError(f"{member} in {path} has shape {shape}", "give shape (2, edges)")
    mapped = _mapped(path, member)
    if mapped is not None:
        step = _PIECE_BYTES // mapped.itemsize
        starts = range(0, shape[1], step)
        return shape[1], (mapped[row, start : start + step] for start in starts)
    return shape[1], _pieces(path, member, shape[1], (), row * shape[1])


@contextmanager
def _opened(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise SpecError(f"{path} does not exist", "check the path") from None
    except SpecError:
        raise
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, KeyError, zlib.error) as error:
        raise SpecError(
            f"{path} cannot be read as npz ({error})",
            "download the file again; it may be truncated or contain pickled objects",
        ) from None


@contextmanager
def _member(path: Path, member: str) -> Iterator[tuple[IO[bytes], tuple[int, ...], np.dtype, int]]:
    with zipfile.ZipFile(path) as archive:
        if f"{member}.npy" not in archive.namelist():
            held = ", ".join(name.removesuffix(".npy") for name in archive.namelist())
            raise SpecError(f"{path} has no array {member}", f"it has {held}")
        with archive.open(f"{member}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }.get(version)
            if read is None:
                raise SpecError(f"{member} in {path} has npy version {version}", "save it again")
            shape, is_fortran, dtype = read(file)
            if (is_fortran and len(shape) > 1) or dtype.hasobject:
                raise SpecError(
                    f"{member} in {path} is not a row-major array of plain numbers",
                    "save np.ascontiguousarray of it",
                )
            yield file, shape, dtype, file.tell()


def _mapped(path: Path, member: str) -> np.ndarray | None:
    """The memory-mapped array; `None` if it is compressed."""
    with _opened(path):
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(f"{member}.npy")
        if info.compress_type != zipfile.ZIP_STORED:
            return None
        with _member(path, member) as (_, shape, dtype, header_bytes):
            if 0 in shape:
                return np.empty(shape, dtype)
            if info.file_size - header_bytes < int(np.prod(shape)) * dtype.itemsize:
                raise SpecError(f"{member} in {path} is truncated", "download the file again")
        with path.open("rb") as file:
            file.seek(info.header_offset)
            # The extra field of the local header may differ from the central directory's.
            name_bytes, extra_bytes = struct.unpack("<HH", file.read(_LOCAL_HEADER_BYTES)[26:])
        offset = info.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes + header_bytes
        return np.memmap(path, dtype, "r", offset, shape)


def _pieces(
    path: Path, member: str, num_rows: int, row_shape: tuple[int, ...], num_skipped: int
) -> Iterator[np.ndarray]:
    with _opened(path), _member(path, member) as (file, _, dtype, _header_bytes):
        row_bytes = dtype.itemsize * int(np.prod(row_shape, dtype=np.int64))
        _skip(file, num_skipped * dtype.itemsize)
        num_piece_rows = max(1, _PIECE_BYTES // max(1, row_bytes))
        for start in range(0, num_rows, num_piece_rows):
            length = min(num_piece_rows, num_rows - start)
            data = file.read(length * row_bytes)
            if len(data) < length * row_bytes:
                raise EOFError(f"{member} ends early")
            yield np.frombuffer(data, dtype).reshape(length, *row_shape)


def _skip(file: IO[bytes], num_bytes: int) -> None:
    while num_bytes > 0:
        skipped = len(file.read(min(num_bytes, _PIECE_BYTES)))
        if skipped == 0:
            raise EOFError("the array ends early")
        num_bytes -= skipped
