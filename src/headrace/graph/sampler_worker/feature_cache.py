"""Sampler-side cache of remote feature rows.

Every column has a hot set of ids: those its own graph partition is expected to sample most, or
those requested most so far. A row is cached when it is first fetched; there are no extra fetches.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.kernels import hash_table
from headrace.graph.sampler_worker.cache_slots import CachedRows, make_slots
from headrace.graph.sampling.hop import Hop, HopRequest
from headrace.graph.sampling.store_pool import StoreHandle
from headrace.graph.schema import TypeName
from headrace.tracing.meter import current_meter

# Per slot besides its row: id, flag, and up to three entries of the hash table.
_BOOKKEEPING_BYTES = 8 + 1 + 3 * 4

# Requested rows per slot until the hot set is updated. On a graph of 200,000 nodes, with capacity
# for a tenth, 2, 8 and 32 reach the same hit rate; 8 converges as fast as 2 in half the time.
_WANTED_PER_SLOT = 8
_MAX_COUNTERS = 1 << 26

# Per slot of a sparse column: first unit and length.
_SPARSE_BYTES = 8 + 8

_NO_ROWS = np.empty(0, np.uint16)


@dataclass(frozen=True)
class CacheReport:
    """Cache metrics; saved bytes are those of hits, fetched bytes those of misses."""

    hits: int = 0
    misses: int = 0
    saved_bytes: int = 0
    fetched_bytes: int = 0
    memory_bytes: int = 0

    def __add__(self, other: CacheReport) -> CacheReport:
        return CacheReport(
            self.hits + other.hits,
            self.misses + other.misses,
            self.saved_bytes + other.saved_bytes,
            self.fetched_bytes + other.fetched_bytes,
            self.memory_bytes + other.memory_bytes,
        )


class FeatureCache:
    """Hot rows of one column within a memory budget; thread-safe.

    `hot` are the ids of the hot set, hottest first; None to determine it by counting requests.
    """

    def __init__(
        self, info: ColumnInfo, num_ids: int, num_bytes: int, hot: np.ndarray | None = None
    ) -> None:
        self._row_bytes = max(info.row_bytes, 1)
        num_counters = 0 if hot is not None else min(num_ids, _MAX_COUNTERS, num_bytes // 8)
        self._counters = np.zeros(num_counters, np.uint8)
        left_bytes = num_bytes - self._counters.nbytes
        num_slots = max(min(num_ids, int(left_bytes // _slot_bytes(info))), 0)
        self._slots = make_slots(info, num_slots, math.ceil(num_slots * self._row_bytes))
        self._is_filled = np.zeros(num_slots, np.bool_)
        self._slot_ids = np.full(num_slots, hash_table.FREE, np.int64)
        # A power of two, at most three times the slots.
        num_places = 1 << (3 * num_slots // 2 + 1).bit_length()
        self._places = np.full(num_places, hash_table.FREE, np.int32)
        self._num_used = 0
        self._wanted = 0
        self._missed: list[np.ndarray] = []
        self._hits = self._misses = 0
        self._lock = threading.Lock()
        if hot is not None:
            self._choose(np.asarray(hot[:num_slots], np.int64))

    @property
    def num_slots(self) -> int:
        """Capacity in rows."""
        return len(self._slot_ids)

    def lookup(self, ids: np.ndarray) -> tuple[CachedRows, np.ndarray]:
        """Cached rows of ids (`int64`), and positions of the misses."""
        slots = np.empty(len(ids), np.int64)
        with self._lock:
            hash_table.find_slots(
                ids, self._places, self._slot_ids, self._is_filled, self._counters, slots
            )
            hits, misses = np.flatnonzero(slots >= 0), np.flatnonzero(slots < 0)
            found = self._slots.read(slots[hits], hits, len(ids))
            self._hits += len(hits)
            self._misses += len(misses)
            if len(self._counters):
                self._wanted += len(ids)
                # Ids requested once are not hot, and storing them would exceed the budget.
                missed = ids[misses]
                seen = self._counters[missed % len(self._counters)] > 1
                self._missed.append(missed[seen])
                if self._wanted > _WANTED_PER_SLOT * self.num_slots:
                    self._choose_again()
        return found, misses

    def admit(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Cache the hot ones of these rows, which are as a store sends them."""
        slots = np.empty(len(ids), np.int64)
        with self._lock:
            self._num_used = hash_table.claim_slots(
                ids, self._num_used, self._places, self._slot_ids, self._is_filled, slots
            )
            unfilled = slots[slots >= 0]
            try:
                unfilled = self._slots.write(slots, values)
            finally:
                # All that were claimed, if the reply is damaged.
                self._is_filled[unfilled] = False

    def report(self) -> CacheReport:
        """Return the metrics."""
        arrays = (self._is_filled, self._slot_ids, self._places, self._counters)
        return CacheReport(
            self._hits,
            self._misses,
            int(self._hits * self._row_bytes),
            int(self._misses * self._row_bytes),
            self._slots.memory_bytes + sum(array.nbytes for array in arrays),
        )

    def _choose_again(self) -> None:
        known = self._slot_ids[self._slot_ids != hash_table.FREE]
        found = np.unique(np.concatenate([known, *self._missed]))
        if len(found) > self.num_slots:
            self._choose(self._most_wanted(found))
        self._missed, self._wanted = [], 0

    def _most_wanted(self, ids: np.ndarray) -> np.ndarray:
        """The most requested ids, one per slot; ties go to cached ids."""
        # Counts are doubled to break ties, and have few values, so bincount replaces a sort.
        scores = 2 * self._counters[ids % len(self._counters)].astype(np.int64)
        scores += np.isin(ids, self._slot_ids)
        at_least = np.cumsum(np.bincount(scores)[::-1])[::-1]
        bound = np.flatnonzero(at_least >= self.num_slots)[-1]
        above = ids[scores > bound]
        return np.append(above, ids[scores == bound][: self.num_slots - len(above)])

    def _choose(self, hot: np.ndarray) -> None:
        """Replace the hot set of a full or empty cache; rows in both sets keep their slots."""
        leave = ~np.isin(self._slot_ids, hot)
        self._slot_ids[leave] = hash_table.FREE
        self._is_filled[leave] = False
        self._slots.clear(np.flatnonzero(leave))
        new = np.setdiff1d(hot, self._slot_ids)
        self._slot_ids[np.flatnonzero(leave)[: len(new)]] = new
        # Remaining slots of an empty cache are filled in order of arrival.
        self._num_used = len(hot)
        self._places.fill(hash_table.FREE)
        hash_table.enter_slots(self._slot_ids, self._places)


class CachedStoreHandle:
    """A store handle with a cache of hot rows.

    All store handles of a sampler share the caches. Embedding rows must not be cached.
    """

    def __init__(
        self, handle: StoreHandle, caches: Mapping[tuple[TypeName, str], FeatureCache]
    ) -> None:
        self._handle = handle
        self._caches = caches

    def sample_soon(self, request: HopRequest) -> Future[Hop]:
        """Sample neighbours of nodes in the store's graph partition."""
        return self._handle.sample_soon(request)

    def gather_soon(
        self, of: TypeName, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Gather rows; only misses are requested from the store."""
        cache = self._caches.get((of, column))
        if cache is None or dims is not None:
            return self._handle.gather_soon(of, column, ids, dims)
        found, misses = cache.lookup(ids)
        meter = current_meter()
        if meter is not None:
            meter.add_cached(len(ids) - len(misses), len(misses))
        if len(misses) == 0:
            done: Future[np.ndarray] = Future()
            done.set_result(found.complete(misses, _NO_ROWS))
            return done
        wanted = ids[misses]
        pending = self._handle.gather_soon(of, column, wanted)
        return _PartialGather(cache, found, misses, wanted, pending)

    def close(self) -> None:
        """Close the connection."""
        self._handle.close()


class _PartialGather(Future[np.ndarray]):
    """Rows with pending misses; `result` fills them in."""

    def __init__(
        self,
        cache: FeatureCache,
        found: CachedRows,
        misses: np.ndarray,
        wanted: np.ndarray,
        pending: Future[np.ndarray],
    ) -> None:
        super().__init__()
        self._cache, self._found, self._misses = cache, found, misses
        self._wanted, self._pending = wanted, pending

    def result(self, timeout: float | None = None) -> np.ndarray:
        values = self._pending.result(timeout)
        rows = self._found.complete(self._misses, values)
        self._cache.admit(self._wanted, values)
        return rows


def hot_by_degree(
    graph: PartitionedGraph, home: int, node_type: str, fanouts: Mapping[TypeName, int]
) -> np.ndarray:
    """New ids of nodes of other graph partitions, by how often `home` is expected to sample them.

    Only the partition `home` is read; `fanouts` are those of the first hop. Hottest ids are first.
    """
    part = graph.part(home)
    halos, draws = [], []
    for edge_type in graph.edge_types:
        if edge_type[0] == node_type and fanouts.get(edge_type, 0) != 0:
            halo = np.asarray(part.halo(edge_type))
            expected = np.zeros(len(halo))
            indptr, indices = (
                np.asarray(a) for a in (part.indptr(edge_type), part.indices(edge_type))
            )
            hash_table.expect_draws(indptr, indices, fanouts[edge_type], halo, expected)
            halos.append(halo.astype(np.int64))
            draws.append(expected)
    if not halos:
        return np.empty(0, np.int64)
    ids, at = np.unique(np.concatenate(halos), return_inverse=True)
    return ids[np.argsort(-np.bincount(at, np.concatenate(draws)), kind="stable")]


def memory_for_rows(info: ColumnInfo, num_ids: int, num_rows: int) -> int:
    """Memory of a cache that counts requests for `num_ids` ids and holds `num_rows` rows."""
    num_bytes = math.ceil(num_rows * _slot_bytes(info))
    return num_bytes + min(num_ids, _MAX_COUNTERS, -(-num_bytes // 7))


def _slot_bytes(info: ColumnInfo) -> float:
    is_sparse = info.encoding is not None and info.encoding.kind == "sparse"
    return max(info.row_bytes, 1) + _BOOKKEEPING_BYTES + (_SPARSE_BYTES if is_sparse else 0)


def divide(num_bytes: int, sizes: Iterable[int]) -> list[int]:
    """Divide the memory budget among columns in proportion to their sizes."""
    sizes = list(sizes)
    return [num_bytes * size // max(sum(sizes), 1) for size in sizes]
