"""Rows of other machines that a sampler keeps, because it will want them again.

Every column has a hot set of ids: those its own part is expected to draw most, or those that were
wanted most so far. A row is kept when it first comes by; nothing is fetched for the cache alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.format.partitioned_graph import PartitionedGraph
from headrace.graph.kernels import hash_table
from headrace.graph.kernels.gathering import place_rows
from headrace.graph.sampling.hop import Hop, HopRequest
from headrace.graph.sampling.store_pool import Of, StoreHandle

# Bytes of what a slot has besides its row: id, flag, and up to three places of the table.
_BOOKKEEPING_BYTES = 8 + 1 + 3 * 4

# After so many wanted rows per slot the hot set is chosen anew. On a graph of 200,000 nodes, with
# room for a tenth, 2, 8 and 32 end at the same hit rate; 8 learns as fast as 2 in half the time.
_WANTED_PER_SLOT = 8
_MAX_COUNTERS = 1 << 26


@dataclass(frozen=True)
class CacheReport:
    """What a cache did.

    Attributes:
        hits: Rows that were there.
        misses: Rows that were fetched.
        saved_bytes: Of the hits.
        fetched_bytes: Of the misses.
        memory_bytes: What the cache takes.
    """

    hits: int = 0
    misses: int = 0
    saved_bytes: int = 0
    fetched_bytes: int = 0
    memory_bytes: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of the wanted rows that were there."""
        return self.hits / max(self.hits + self.misses, 1)

    def __add__(self, other: CacheReport) -> CacheReport:
        return CacheReport(
            self.hits + other.hits,
            self.misses + other.misses,
            self.saved_bytes + other.saved_bytes,
            self.fetched_bytes + other.fetched_bytes,
            self.memory_bytes + other.memory_bytes,
        )


class FeatureCache:
    """The hot rows of one column; several threads may ask.

    Args:
        info: The column.
        num_ids: How many rows it has in all.
        num_bytes: Of memory.
        hot: Ids of the hot set, the hottest first; none to find out by counting.
    """

    def __init__(
        self, info: ColumnInfo, num_ids: int, num_bytes: int, hot: np.ndarray | None = None
    ) -> None:
        dtype = np.dtype(np.uint16 if info.dtype == "bfloat16" else info.dtype)
        self._shape, self._dtype = info.shape, dtype
        width = int(np.prod(info.shape, dtype=np.int64))
        self._row_bytes = max(width * dtype.itemsize, 1)
        num_counters = 0 if hot is not None else min(num_ids, _MAX_COUNTERS, num_bytes // 8)
        self._counters = np.zeros(num_counters, np.uint8)
        left_bytes = num_bytes - self._counters.nbytes
        num_slots = max(min(num_ids, left_bytes // (self._row_bytes + _BOOKKEEPING_BYTES)), 0)
        self._rows = np.empty((num_slots, width), f"u{dtype.itemsize}")
        self._is_filled = np.zeros(num_slots, np.bool_)
        self._slot_ids = np.full(num_slots, hash_table.FREE, np.int64)
        # The next power of two, which is up to three times the slots.
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
        """How many rows there is room for."""
        return len(self._rows)

    def take(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of ids, `int64`, and positions of those that are not there."""
        out = np.empty((len(ids), *self._shape), self._dtype)
        misses = np.empty(len(ids), np.int64)
        with self._lock:
            num_misses = hash_table.take_rows(
                ids, self._places, self._slot_ids, self._is_filled, self._rows, self._counters,
                self._words(out), misses,
            )  # fmt: skip
            misses = misses[:num_misses]
            self._hits += len(ids) - num_misses
            self._misses += num_misses
            if len(self._counters):
                self._wanted += len(ids)
                # What was wanted once is not hot, and would take memory that is not ours.
                missed = ids[misses]
                seen = self._counters[missed % len(self._counters)] > 1
                self._missed.append(missed[seen])
                if self._wanted > _WANTED_PER_SLOT * self.num_slots:
                    self._choose_again()
        return out, misses

    def admit(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Keep those of these rows that are hot."""
        with self._lock:
            self._num_used = hash_table.admit_rows(
                ids, self._words(values), self._num_used, self._places, self._slot_ids,
                self._is_filled, self._rows,
            )  # fmt: skip

    def report(self) -> CacheReport:
        """What the cache did so far."""
        arrays = (self._rows, self._is_filled, self._slot_ids, self._places, self._counters)
        return CacheReport(
            self._hits,
            self._misses,
            self._hits * self._row_bytes,
            self._misses * self._row_bytes,
            sum(array.nbytes for array in arrays),
        )

    def _words(self, values: np.ndarray) -> np.ndarray:
        flat = np.ascontiguousarray(values).reshape(len(values), self._rows.shape[1])
        return flat.view(self._rows.dtype)

    def _choose_again(self) -> None:
        known = self._slot_ids[self._slot_ids != hash_table.FREE]
        found = np.unique(np.concatenate([known, *self._missed]))
        if len(found) > self.num_slots:
            self._choose(self._most_wanted(found))
        self._missed, self._wanted = [], 0

    def _most_wanted(self, ids: np.ndarray) -> np.ndarray:
        """As many of the ids as there are slots; of equals, those that are there."""
        # Counts are doubled to tell equals apart, and have few values: no need to sort.
        scores = 2 * self._counters[ids % len(self._counters)].astype(np.int64)
        scores += np.isin(ids, self._slot_ids)
        at_least = np.cumsum(np.bincount(scores)[::-1])[::-1]
        bound = np.flatnonzero(at_least >= self.num_slots)[-1]
        above = ids[scores > bound]
        return np.append(above, ids[scores == bound][: self.num_slots - len(above)])

    def _choose(self, hot: np.ndarray) -> None:
        """Change the hot set of a full or empty cache; rows that stay in it stay where they are."""
        leave = ~np.isin(self._slot_ids, hot)
        self._slot_ids[leave] = hash_table.FREE
        self._is_filled[leave] = False
        new = np.setdiff1d(hot, self._slot_ids)
        self._slot_ids[np.flatnonzero(leave)[: len(new)]] = new
        # What is left of an empty cache goes to whatever comes first.
        self._num_used = len(hot)
        self._places.fill(hash_table.FREE)
        hash_table.enter_slots(self._slot_ids, self._places)


class CachedStoreHandle:
    """A store whose hot rows are kept here; everything else it is asked for as before.

    Args:
        owner: The store.
        caches: By node type or edge type and column; stores of one sampler share them. Rows that
            are learned must not be among them.
    """

    def __init__(self, owner: StoreHandle, caches: Mapping[tuple[Of, str], FeatureCache]) -> None:
        self._owner = owner
        self._caches = caches

    def sample_soon(self, request: HopRequest) -> Future[Hop]:
        """Choose neighbours of nodes that the store owns."""
        return self._owner.sample_soon(request)

    def gather_soon(
        self, of: Of, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        """Rows of values; only those that are not here are asked for."""
        cache = self._caches.get((of, column))
        if cache is None or dims is not None:
            return self._owner.gather_soon(of, column, ids, dims)
        out, misses = cache.take(ids)
        if len(misses) == 0:
            done: Future[np.ndarray] = Future()
            done.set_result(out)
            return done
        wanted = ids[misses]
        asked = self._owner.gather_soon(of, column, wanted)
        return _Completed(cache, out, misses, wanted, asked)

    def close(self) -> None:
        """Give up the connection."""
        self._owner.close()


class _Completed(Future[np.ndarray]):
    """Rows some of which are still on their way; who waits for them puts them in place."""

    def __init__(
        self,
        cache: FeatureCache,
        out: np.ndarray,
        misses: np.ndarray,
        wanted: np.ndarray,
        asked: Future[np.ndarray],
    ) -> None:
        super().__init__()
        self._cache, self._out, self._misses = cache, out, misses
        self._wanted, self._asked = wanted, asked

    def result(self, timeout: float | None = None) -> np.ndarray:
        values = self._asked.result(timeout)
        place_rows(
            self._misses,
            np.arange(len(values)),
            self._cache._words(values),
            self._cache._words(self._out),
        )
        self._cache.admit(self._wanted, values)
        return self._out


def hot_by_degree(
    graph: PartitionedGraph, home: int, node_type: str, fanouts: Mapping[Of, int]
) -> np.ndarray:
    """Nodes of other parts by how often one part's nodes are expected to draw them.

    Args:
        graph: The parts; only `home` is read.
        home: The sampler's own part.
        node_type: Whose ids.
        fanouts: Neighbours drawn in the first hop, by edge type.

    Returns:
        New ids, the hottest first.
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


def divide(num_bytes: int, sizes: Iterable[int]) -> list[int]:
    """Give columns memory in proportion to their sizes."""
    sizes = list(sizes)
    return [num_bytes * size // max(sum(sizes), 1) for size in sizes]
