"""Rows of values of a batch's nodes or edges, wherever they are, straight into one array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from headrace.graph.kernels import gathering
from headrace.graph.sampling.hop import split_by_owner
from headrace.graph.sampling.store_pool import Of, StorePool
from headrace.tracing.meter import current_meter

# As for hops: so many parts look at all ids before it pays to sort ids by owner.
_FEW_PARTS = 4


@dataclass(frozen=True)
class FeatureColumns:
    """A column in parts.

    Attributes:
        of: Node type or edge type.
        name: Of the column.
        offsets: Where the ids of each part begin; one more than parts.
        parts: Values of each part; none where a store has them.
    """

    of: Of
    name: str
    offsets: np.ndarray
    parts: Sequence[np.ndarray | None]


class FeatureGather:
    """A gather that is under way: stores are asked at once, and waited for at the end.

    Args:
        rows: The column.
        ids: Of the wanted rows, in any order, `int64`; all are in range.
        owners: Stores of parts that are not here.
        may_repeat: Whether an id may appear twice; stores are then asked for it once.

    Attributes:
        purpose: What is gathered.
    """

    def __init__(
        self, rows: FeatureColumns, ids: np.ndarray, owners: StorePool, may_repeat: bool = False
    ) -> None:
        self._rows = rows
        self._ids = ids
        self.purpose = rows.of, rows.name
        self._local: list[tuple[int, np.ndarray]] = []
        self._asked: list[tuple[np.ndarray, np.ndarray, Future[np.ndarray]]] = []
        self._is_split = bool(owners) or len(rows.parts) > _FEW_PARTS
        if not self._is_split:
            return
        split = split_by_owner(ids, rows.offsets)
        self._local = [(part, at) for part, at in split if part not in owners]
        meter = current_meter()
        if meter is not None:
            for part, at in self._local:
                meter.add_local(part, len(at) * _row_bytes(rows.parts[part]))
        for part, at in split:
            if part in owners:
                wanted, order = _unique(ids[at], may_repeat)
                future = owners.owner(part).gather_soon(rows.of, rows.name, wanted)
                self._asked.append((at, order, future))

    def into(self, out: np.ndarray) -> None:
        """Fill an array that has a row per id.

        Raises:
            StoreError: A store did not answer.
        """
        if out.size == 0:
            return
        if not self._is_split:
            self._copy_all(out)
        for part, at in self._local:
            values, first = self._rows.parts[part], int(self._rows.offsets[part])
            assert values is not None
            (source,), target = _words([values], out)
            gathering.copy_at(at, self._ids, first, source, target)
        for at, order, future in self._asked:
            (source,), target = _words([future.result()], out)
            gathering.place_rows(at, order, source, target)

    def _copy_all(self, out: np.ndarray) -> None:
        offsets = self._rows.offsets
        # Compiled code wants parts of one type, and empty ones are no mapped files.
        used = np.flatnonzero(np.diff(offsets))
        parts = [values for p in used if (values := self._rows.parts[int(p)]) is not None]
        if len(offsets) == 2 and parts[0].dtype == out.dtype:
            # numpy copies whole rows at once; `clip` spares it a second look at the ids.
            np.take(parts[0], self._ids, axis=0, out=out, mode="clip")
            return
        sources, target = _words(parts, out)
        gathering.copy_rows(self._ids, np.append(offsets[used], offsets[-1]), sources, target)


def _row_bytes(values: np.ndarray | None) -> int:
    return 0 if values is None else values.itemsize * math.prod(values.shape[1:])


def _unique(ids: np.ndarray, may_repeat: bool) -> tuple[np.ndarray, np.ndarray]:
    if not may_repeat:
        return ids, np.arange(len(ids))
    wanted, order = np.unique(ids, return_inverse=True)
    return wanted, order


def _words(
    sources: Sequence[np.ndarray], target: np.ndarray
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """See rows as words, the longest that fit: one compiled loop serves all types of a size."""
    flat = [
        np.asarray(array).reshape(len(array), math.prod(array.shape[1:]))
        for array in (*sources, target)
    ]
    # Ids, which are stored in few bytes, become longer on the way.
    if all(array.dtype == target.dtype for array in sources):
        fits = [flat[-1].shape[1] * target.itemsize, *(array.ctypes.data for array in flat)]
        size = next(size for size in (8, 4, 2, 1) if all(n % size == 0 for n in fits))
        flat = [array.view(f"u{size}") for array in flat]
    return tuple(flat[:-1]), flat[-1]
