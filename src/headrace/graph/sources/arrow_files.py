"""Parquet and Arrow tables, read in batches of rows."""

from __future__ import annotations

import bisect
import difflib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.core.errors import MissingExtraError, SpecError
from headrace.graph.schema import Column
from headrace.graph.sources.chunks import RowStream

_BATCH_ROWS = 1 << 16
_BATCH_BYTES = 16 << 20


@dataclass(frozen=True)
class _Fragment:
    """A Parquet row group or an Arrow record batch: the unit of random access."""

    path: Path
    index: int
    is_parquet: bool
    first_row: int


class TableFiles:
    """One table in one or more Parquet or Arrow (Feather) files.

    Attributes:
        name: Name of the table in messages.
        num_rows: Number of rows in all files.
        schema: Columns that all files have.
    """

    def __init__(self, paths: Sequence[Path], name: str) -> None:
        self.name = name
        self.num_rows = 0
        self.schema: Any = None
        self._fragments: list[_Fragment] = []
        for path in paths:
            self._add(path)
        self._first_rows = [fragment.first_row for fragment in self._fragments]

    def batches(self, columns: Sequence[str], first_row: int = 0) -> Iterator[tuple[int, Any]]:
        """Iterate over first row and record batch, from the fragment that contains `first_row`."""
        for column in columns:
            self.check_column(column)
        arrow = _arrow()
        position = bisect.bisect_right(self._first_rows, first_row) - 1
        wanted = self._fragments[max(position, 0) :]
        for path, group in itertools.groupby(wanted, lambda fragment: fragment.path):
            fragments = list(group)
            row = fragments[0].first_row
            try:
                for batch in _read_fragments(path, fragments, list(columns)):
                    yield row, batch.select(list(columns))
                    row += batch.num_rows
            except (arrow.ArrowException, OSError) as error:
                raise _unreadable(path, error) from None

    def column(self, name: str, fields: Sequence[str], narrow: bool = False) -> Column:
        """Combine fields into a column.

        Args:
            name: Name of the column.
            fields: Fields of the table, concatenated; one may be a list of numbers per row.
            narrow: Convert `float64` to `float32`.
        """
        dtypes, widths = zip(*(self._width(field) for field in fields), strict=True)
        dtype = np.result_type(*dtypes)
        if narrow and dtype == np.float64:
            dtype = np.dtype(np.float32)
        is_single = len(fields) == 1 and widths[0] is None
        shape = () if is_single else (sum(width or 1 for width in widths),)
        num_batch_rows = max(1, _BATCH_BYTES // (dtype.itemsize * max(1, *shape, 1)))

        def rows_from(start: int) -> Iterator[np.ndarray]:
            for first_row, whole in self.batches(fields, start):
                for offset in range(0, whole.num_rows, num_batch_rows):
                    batch = whole.slice(offset, num_batch_rows)
                    rows = np.empty((batch.num_rows, *shape), dtype)
                    at = 0
                    for field, width, values in zip(fields, widths, batch.columns, strict=True):
                        numbers = self.numbers(field, values, first_row + offset, width)
                        if is_single:
                            rows[:] = numbers
                        else:
                            rows[:, at : at + (width or 1)] = numbers.reshape(len(rows), -1)
                        at += width or 1
                    yield rows

        stream = RowStream(dtype, shape, self._begin, rows_from)
        return Column(name, dtype, shape, stream.read)

    def numbers(self, field: str, values: Any, first_row: int, width: int | None) -> np.ndarray:
        """Values of a field as an array, `(rows, width)` for lists."""
        arrow = _arrow()
        self.check_no_nulls(field, values, first_row)
        if width is not None:
            lengths = np.diff(_list_offsets(values))
            if bool((lengths != width).any()):
                row = int(np.argmax(lengths != width))
                raise SpecError(
                    f"{field} of {self.name} has {lengths[row]} numbers in row "
                    f"{first_row + row:,}, others have {width}",
                    "give lists of equal length",
                )
            values = values.flatten()
            self.check_no_nulls(field, values, first_row)
        if arrow.types.is_temporal(values.type):
            values = values.cast(arrow.int64())
        numbers: np.ndarray = values.to_numpy(zero_copy_only=False)
        return numbers if width is None else numbers.reshape(-1, width)

    def check_column(self, field: str) -> None:
        """Raise SpecError if a field does not exist."""
        if field not in self.schema.names:
            near = difflib.get_close_matches(field, self.schema.names, 1)
            hint = f"did you mean {near[0]}? It has" if near else "it has"
            raise SpecError(
                f"{self.name} has no column {field}", f"{hint} {', '.join(self.schema.names)}"
            )

    def check_no_nulls(self, field: str, values: Any, first_row: int) -> None:
        """Raise SpecError if a value is null."""
        if values.null_count:
            row = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            raise SpecError(
                f"{field} of {self.name} has no value (null) in row {first_row + row:,}",
                "set the value or remove the row; unlabelled nodes have label -1",
            )

    def _begin(self, row: int) -> int:
        if not self._fragments:
            return 0
        return self._first_rows[max(bisect.bisect_right(self._first_rows, row) - 1, 0)]

    def _width(self, field: str) -> tuple[np.dtype, int | None]:
        """Dtype of a field, and its width if it is a list."""
        arrow = _arrow()
        self.check_column(field)
        kind, width = self.schema.field(field).type, None
        types = arrow.types
        if types.is_fixed_size_list(kind):
            kind, width = kind.value_type, kind.list_size
        elif types.is_list(kind) or types.is_large_list(kind):
            kind, width = kind.value_type, self._first_length(field)
        if types.is_temporal(kind):
            kind = arrow.int64()
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
            raise SpecError(
                f"{field} of {self.name} has type {kind}", "give numbers, or lists of numbers"
            )
        return np.dtype(kind.to_pandas_dtype()), width

    def _first_length(self, field: str) -> int:
        for first_row, batch in self.batches([field]):
            if batch.num_rows:
                values = batch.column(0).slice(0, 1)
                self.check_no_nulls(field, values, first_row)
                return len(values[0])
        return 0

    def _shared(self, schema: Any, path: Path) -> Any:
        names = [name for name in self.schema.names if name in schema.names]
        for name in names:
            ours, theirs = self.schema.field(name).type, schema.field(name).type
            if ours != theirs:
                raise SpecError(
                    f"{name} is {theirs} in {path}, but {ours} in the first file of {self.name}",
                    "give a column the same type in all files",
                )
        return _arrow().schema([self.schema.field(name) for name in names])

    def _add(self, path: Path) -> None:
        arrow = _arrow()
        try:
            with path.open("rb") as file:
                start = file.read(6)
            if start[:4] == b"PAR1":
                schema, rows = _parquet_layout(path)
            elif start == b"ARROW1":
                schema, rows = _arrow_layout(path)
            else:
                raise SpecError(
                    f"{path} is neither a Parquet nor an Arrow file",
                    "write it with pyarrow.parquet.write_table or pyarrow.feather.write_feather",
                )
        except (arrow.ArrowException, OSError) as error:
            raise _unreadable(path, error) from None
        self.schema = schema if self.schema is None else self._shared(schema, path)
        for index, num_rows in enumerate(rows):
            if num_rows:
                is_parquet = start[:4] == b"PAR1"
                self._fragments.append(_Fragment(path, index, is_parquet, self.num_rows))
                self.num_rows += num_rows


def _parquet_layout(path: Path) -> tuple[Any, list[int]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        groups = range(file.metadata.num_row_groups)
        return file.schema_arrow.remove_metadata(), [
            file.metadata.row_group(i).num_rows for i in groups
        ]


def _arrow_layout(path: Path) -> tuple[Any, list[int]]:
    import pyarrow as arrow

    with arrow.memory_map(str(path)) as memory:
        # Reads only one column to count rows.
        options = arrow.ipc.IpcReadOptions(included_fields=[0])
        file = arrow.ipc.open_file(memory, options=options)
        rows = [file.get_batch(i).num_rows for i in range(file.num_record_batches)]
        return arrow.ipc.open_file(memory).schema.remove_metadata(), rows


def _read_fragments(path: Path, fragments: list[_Fragment], columns: list[str]) -> Iterator[Any]:
    import pyarrow as arrow
    import pyarrow.parquet

    indices = [fragment.index for fragment in fragments]
    if fragments[0].is_parquet:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(_BATCH_ROWS, indices, columns, use_threads=False)
        return
    with arrow.memory_map(str(path)) as memory:
        names = arrow.ipc.open_file(memory).schema.names
        options = arrow.ipc.IpcReadOptions(included_fields=[names.index(each) for each in columns])
        file = arrow.ipc.open_file(memory, options=options)
        for index in indices:
            batch = file.get_batch(index)
            for start in range(0, batch.num_rows, _BATCH_ROWS):
                yield batch.slice(start, _BATCH_ROWS)


def _list_offsets(values: Any) -> np.ndarray:
    arrow = _arrow()
    if arrow.types.is_fixed_size_list(values.type):
        return np.arange(len(values) + 1) * int(values.type.list_size)
    offsets: np.ndarray = values.offsets.to_numpy()
    return offsets


def _arrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtraError(
            "pyarrow is not installed", "pip install 'headrace[partition]'"
        ) from None
    return pyarrow


def _unreadable(path: Path, error: Exception) -> SpecError:
    if isinstance(error, FileNotFoundError):
        return SpecError(f"{path} does not exist", "check the path")
    reason = str(error).splitlines()[0]
    return SpecError(f"{path} cannot be read ({reason})", "write the file again if it is truncated")
