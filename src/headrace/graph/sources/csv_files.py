"""Numbers in comma-separated files without a header, as OGB keeps them, read in blocks."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.source import Column
from headrace.graph.sources.streaming import RowStream

_BLOCK_BYTES = 4 << 20
_PEEKED_CHARACTERS = 1 << 16


def read_csv(path: Path) -> np.ndarray:
    """All rows of a small file, shape `(rows, fields)`: `int64`, or `float32` if one has a point.

    Raises:
        SpecError: It is missing, truncated or holds text.
    """
    dtype, num_fields = _peek(path)
    blocks = list(csv_blocks(path, dtype, num_fields))
    return np.concatenate(blocks) if blocks else np.empty((0, num_fields), dtype)


def csv_column(path: Path, name: str) -> Column:
    """A file with a row per node or edge as a column, a number per row if it has one field.

    Raises:
        SpecError: It is missing, truncated or holds text.
    """
    dtype, num_fields = _peek(path)
    shape = (num_fields,) if num_fields > 1 else ()

    def rows_from(_: int) -> Iterator[np.ndarray]:
        for block in csv_blocks(path, dtype, num_fields):
            yield block.reshape(-1, *shape)

    stream = RowStream(dtype, shape, lambda _: 0, rows_from)
    return Column(name, dtype, shape, stream.read)


def csv_blocks(path: Path, dtype: np.dtype, num_fields: int) -> Iterator[np.ndarray]:
    """Rows in blocks of shape `(rows, num_fields)`.

    Raises:
        SpecError: The file is missing, truncated or has something else in it.
    """
    arrow, csv = _arrow()
    names = [str(i) for i in range(num_fields)]
    kind = arrow.from_numpy_dtype(dtype)
    try:
        reader = csv.open_csv(
            path,
            csv.ReadOptions(use_threads=False, block_size=_BLOCK_BYTES, column_names=names),
            csv.ParseOptions(),
            csv.ConvertOptions(column_types=dict.fromkeys(names, kind)),
        )
        for batch in reader:
            block = np.empty((batch.num_rows, num_fields), dtype)
            for i, field in enumerate(batch.columns):
                # A missing number is NaN among floats; among integers it has no name.
                if field.null_count and dtype.kind != "f":
                    raise SpecError(f"{path} has an empty field", "write a number in every field")
                block[:, i] = field.to_numpy(zero_copy_only=False)
            yield block
    except (arrow.ArrowException, OSError, EOFError) as error:
        raise _unreadable(path, error) from None


def _peek(path: Path) -> tuple[np.dtype, int]:
    """Type and number of fields, from the first rows."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            text = file.read(_PEEKED_CHARACTERS)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    if not text:
        return np.dtype(np.int64), 1
    lines = text.splitlines()
    is_float = any(mark in text.lower() for mark in (".", "e", "nan", ",,"))
    return np.dtype(np.float32 if is_float else np.int64), lines[0].count(",") + 1


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import csv
    except ImportError:
        raise MissingExtraError(
            "pyarrow is not installed", "pip install 'headrace[partition]'"
        ) from None
    return pyarrow, csv


def _unreadable(path: Path, error: Exception) -> SpecError:
    if isinstance(error, FileNotFoundError):
        return SpecError(f"{path} does not exist", "check that the download is complete")
    return SpecError(
        f"{path} cannot be read as numbers ({error})", "get the file again; it may be truncated"
    )
