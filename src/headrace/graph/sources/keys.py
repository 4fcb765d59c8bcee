"""Mapping of node keys in tables to row numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.kernels.hash_table import hash_texts
from headrace.graph.sources.arrow_files import TableFiles

_NUM_HASH_SEEDS = 8


class Keys:
    """The keys of one node type.

    Keys 0, 1, 2 ... need no memory. Other keys need 12 to 16 bytes each: the sorted integers or
    64-bit hashes of strings, and the row of each. Two strings of a table never share a hash (on a
    collision another seed is used); an unknown string is mistaken for a known one with probability
    `num_keys / 2^64`. Without a key column (`field`), keys are row numbers.
    """

    def __init__(self, table: TableFiles, field: str | None) -> None:
        self._table = table
        self._field = field
        self._is_text = False
        self._seed = 0
        self._sorted: np.ndarray | None = None
        self._rows = np.empty(0, np.int32)
        if field is None:
            return
        table.check_column(field)
        self._is_text = _is_text(table.schema.field(field).type)
        if not self._is_text and self._counts_up():
            return
        for seed in range(_NUM_HASH_SEEDS):
            self._seed = seed
            if self._build():
                return
        raise SpecError(f"the keys of {table.name} collide in every hash", "use integer keys")

    def rows(self, values: Any, table: TableFiles, field: str, first_row: int) -> np.ndarray:
        """Row numbers of the nodes with the keys `values`; `first_row` is their row in `table`."""
        if _is_text(values.type) != self._is_text:
            raise SpecError(
                f"{field} of {table.name} has type {values.type}, but the keys of "
                f"{self._table.name} are {'strings' if self._is_text else 'integers'}",
                "give both the same type",
            )
        wanted = _comparable(table, field, values, first_row, self._seed)
        if self._sorted is None:
            rows = wanted
            is_known = (wanted >= 0) & (wanted < self._table.num_rows)
        else:
            last = max(len(self._sorted) - 1, 0)
            at = np.minimum(np.searchsorted(self._sorted, wanted), last)
            is_known = self._sorted[at] == wanted if len(self._sorted) else np.zeros(len(at), bool)
            rows = self._rows[at] if len(self._sorted) else at
        if not is_known.all():
            row = int(np.argmin(is_known))
            raise SpecError(
                f"row {first_row + row:,} of {table.name} has node {values[row].as_py()!r} in "
                f"{field}, which {self._table.name} lacks",
                "remove the dangling edge or add the node",
            )
        return rows

    def _counts_up(self) -> bool:
        for row, batch in self._table.batches([str(self._field)]):
            values = _comparable(self._table, str(self._field), batch.column(0), row, 0)
            if not np.array_equal(values, np.arange(row, row + len(values))):
                return False
        return True

    def _build(self) -> bool:
        """Sort all keys; returns false if two different strings have equal hashes."""
        num_rows = self._table.num_rows
        keys = np.empty(num_rows, np.uint64 if self._is_text else np.int64)
        for row, batch in self._table.batches([str(self._field)]):
            values = batch.column(0)
            keys[row : row + len(values)] = _comparable(
                self._table, str(self._field), values, row, self._seed
            )
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        same = np.flatnonzero(keys[1:] == keys[:-1])
        for i in same:
            first, second = self._key(int(order[i])), self._key(int(order[i + 1]))
            if first == second:
                raise SpecError(
                    f"{self._field} of {self._table.name} has {first!r} in rows {order[i]:,} and "
                    f"{order[i + 1]:,}",
                    "give every node a unique key",
                )
        if same.size:
            return False
        self._sorted = keys
        self._rows = order.astype(np.int32 if num_rows < 2**31 else np.int64)
        return True

    def _key(self, row: int) -> object:
        for first_row, batch in self._table.batches([str(self._field)], row):
            if row < first_row + batch.num_rows:
                return batch.column(0)[row - first_row].as_py()
        return None


def _is_text(kind: Any) -> bool:
    import pyarrow as arrow

    if arrow.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(arrow.types.is_string(kind) or arrow.types.is_large_string(kind))


def _comparable(
    table: TableFiles, field: str, values: Any, first_row: int, seed: int
) -> np.ndarray:
    """Integers unchanged, strings as hashes."""
    import pyarrow as arrow

    table.check_no_nulls(field, values, first_row)
    if arrow.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if arrow.types.is_integer(values.type):
        try:
            integers: np.ndarray = values.cast(arrow.int64()).to_numpy()
        except arrow.ArrowInvalid:
            raise SpecError(
                f"{field} of {table.name} has keys above 2^63", "use smaller keys, or strings"
            ) from None
        return integers
    if not _is_text(values.type):
        raise SpecError(
            f"{field} of {table.name} has keys of type {values.type}", "use integers or strings"
        )
    texts = values.cast(arrow.large_string())
    _, offsets_buffer, data_buffer = texts.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[texts.offset :][: len(texts) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    hashes: np.ndarray = hash_texts(data, offsets, seed)
    return hashes
