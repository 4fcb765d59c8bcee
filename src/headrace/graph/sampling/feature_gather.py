"""Gather feature rows of local and remote graph partitions into one array."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from headrace.core.errors import DamagedGraphError
from headrace.graph.format.row_codec import RowCodec, SparseRows, StoredRows
from headrace.graph.kernels import gathering
from headrace.graph.sampling.hop import split_by_partition
from headrace.graph.sampling.remote_scores import RemoteScores
from headrace.graph.sampling.store_pool import StorePool
from headrace.graph.schema import TypeName
from headrace.tracing.meter import current_meter

# Up to this many partitions, scanning all ids is faster than sorting them; see hop.py.
_MAX_SCANNED_PARTS = 4


@dataclass(frozen=True)
class FeatureColumns:
    """A column of all graph partitions.

    Attributes:
        of: Node type or edge type.
        name: Name of the column.
        offsets: First id of each partition, and the end.
        parts: Stored rows of each partition; None for remote ones.
        codec: Decodes rows; None if they are stored as they are.
    """

    of: TypeName
    name: str
    offsets: np.ndarray
    parts: Sequence[StoredRows | None]
    codec: RowCodec | None = None


class FeatureGather:
    """A gather in progress: store requests are sent on construction, replies are awaited in `into`.

    Ids are in range and in any order; with `may_repeat`, repeated ids are requested once. With
    `scores`, only their dimensions of rows outside of their home partition are requested and others
    are zero; encoded rows are requested whole, because they are smaller.
    """

    def __init__(
        self,
        rows: FeatureColumns,
        ids: np.ndarray,
        stores: StorePool,
        may_repeat: bool = False,
        scores: RemoteScores | None = None,
    ) -> None:
        self._rows = rows
        self._ids = ids
        self.purpose = rows.of, rows.name
        self._local: list[tuple[int, np.ndarray]] = []
        self._pending: list[tuple[np.ndarray, np.ndarray, Future[np.ndarray]]] = []
        is_encoded = rows.codec is not None
        self._dims = None
        if scores is not None and scores.column == rows.name and not is_encoded:
            self._dims = scores.dims
        self._is_split = is_encoded or bool(stores) or len(rows.parts) > _MAX_SCANNED_PARTS
        if not self._is_split:
            return
        split = split_by_partition(ids, rows.offsets)
        self._local = [(part, at) for part, at in split if part not in stores]
        meter = current_meter()
        if meter is not None:
            for part, at in self._local:
                local = ids[at] - int(rows.offsets[part])
                meter.add_local(part, _num_bytes(rows.parts[part], local))
        for part, at in split:
            if part in stores:
                wanted, order = _unique(ids[at], may_repeat)
                is_home = scores is not None and part == scores.home
                dims = None if is_home else self._dims
                future = stores.handle(part).gather_soon(rows.of, rows.name, wanted, dims)
                self._pending.append((at, order, future))

    def into(self, out: np.ndarray) -> None:
        """Fill an array with a row per id; raise `StoreError` if a store fails."""
        if out.size == 0:
            return
        if not self._is_split:
            self._copy_all(out)
        codec = self._rows.codec
        if codec is not None:
            for stored, rows, at in self._encoded_pieces():
                codec.decode(stored, rows, at, out)
            return
        for part, at in self._local:
            values, first = self._rows.parts[part], int(self._rows.offsets[part])
            assert isinstance(values, np.ndarray)
            (source,), target = _words([values], out)
            gathering.copy_at(at, self._ids, first, source, target)
        for at, order, future in self._pending:
            self._place(self._widened(future.result(), out.shape[1:]), order, at, out)

    def encoded(self) -> np.ndarray:
        """Encoded rows in the order of the ids: an array row each, or all units of sparse rows.

        Raises:
            StoreError: A store failed.
            DamagedGraphError: A store sent other rows.
        """
        codec = self._rows.codec
        assert codec is not None
        if not codec.is_sparse:
            out = np.empty((len(self._ids), codec.stored_width), np.uint8)
            for stored, rows, at in self._encoded_pieces():
                assert isinstance(stored, np.ndarray)
                self._place(stored, rows, at, out)
            return out
        units, positions = [np.empty(0, np.uint16)], [np.empty(0, np.int64)]
        for stored, rows, at in self._encoded_pieces():
            if isinstance(stored, np.ndarray):
                stored = codec.split(stored, int(rows.max()) + 1)
            units.append(stored.take(rows))
            positions.append(at)
        order = np.empty(len(self._ids), np.int64)
        order[np.concatenate(positions)] = np.arange(len(order))
        return codec.split(np.concatenate(units), len(order)).take(order)

    def _encoded_pieces(self) -> Iterator[tuple[StoredRows, np.ndarray, np.ndarray]]:
        """Stored rows of each partition, numbers of those to use, and their positions."""
        for part, at in self._local:
            stored = self._rows.parts[part]
            assert stored is not None
            yield stored, self._ids[at] - int(self._rows.offsets[part]), at
        for at, order, future in self._pending:
            yield future.result(), order, at

    def _widened(self, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Rows with zeros in the dimensions that were not requested."""
        if self._dims is None or values.shape[1:] == shape or values.shape[1:] != self._dims.shape:
            return values
        wide = np.zeros((len(values), *shape), values.dtype)
        wide[:, self._dims] = values
        return wide

    def _place(self, values: np.ndarray, rows: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
        # Kernels do not check bounds.
        if values.shape[1:] != out.shape[1:] or len(values) <= rows.max(initial=-1):
            raise DamagedGraphError(
                f"a store sent {values.shape} instead of {(len(at), *out.shape[1:])} for "
                f"{self._rows.name!r}",
                "use the same graph on all machines",
            )
        (source,), target = _words([values], out)
        gathering.place_rows(at, rows, source, target)

    def _copy_all(self, out: np.ndarray) -> None:
        offsets = self._rows.offsets
        # The kernel needs arrays of one type; empty partitions are not memory-mapped.
        used = np.flatnonzero(np.diff(offsets))
        found = (self._rows.parts[int(p)] for p in used)
        parts = [values for values in found if isinstance(values, np.ndarray)]
        if len(offsets) == 2 and parts[0].dtype == out.dtype:
            # numpy copies whole rows at once; `clip` avoids a second pass over the ids.
            np.take(parts[0], self._ids, axis=0, out=out, mode="clip")
            return
        sources, target = _words(parts, out)
        gathering.copy_rows(self._ids, np.append(offsets[used], offsets[-1]), sources, target)


def _num_bytes(values: StoredRows | None, rows: np.ndarray) -> int:
    """Size of some rows as they are stored."""
    if values is None:
        return 0
    if isinstance(values, SparseRows):
        return 2 * values.num_units(rows)
    return len(rows) * values.itemsize * math.prod(values.shape[1:])


def _unique(ids: np.ndarray, may_repeat: bool) -> tuple[np.ndarray, np.ndarray]:
    if not may_repeat:
        return ids, np.arange(len(ids))
    wanted, order = np.unique(ids, return_inverse=True)
    return wanted, order


def _words(
    sources: Sequence[np.ndarray], target: np.ndarray
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """View rows as the longest words that fit, so one kernel serves all dtypes of a size."""
    flat = [
        np.asarray(array).reshape(len(array), math.prod(array.shape[1:]))
        for array in (*sources, target)
    ]
    # Ids are stored in fewer bytes and are cast by the kernel.
    if all(array.dtype == target.dtype for array in sources):
        fits = [flat[-1].shape[1] * target.itemsize, *(array.ctypes.data for array in flat)]
        size = next(size for size in (8, 4, 2, 1) if all(n % size == 0 for n in fits))
        flat = [array.view(f"u{size}") for array in flat]
    return tuple(flat[:-1]), flat[-1]
