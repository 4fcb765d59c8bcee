from __future__ import annotations

import threading
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import DamagedGraphError
from headrace.graph.build.encoding_choice import choose_form
from headrace.graph.format.manifest import ColumnInfo
from headrace.graph.format.partitioned_graph import open_graph
from headrace.graph.kernels import hash_table
from headrace.graph.sampler_worker.feature_cache import (
    CachedStoreHandle,
    FeatureCache,
    divide,
    hot_by_degree,
)
from headrace.graph.sampling.hop import Hop, HopRequest
from headrace.graph.schema import Column, TypeName
from tests.unit.graph.small_graphs import NODE_TO_NODE, homogeneous, write

INFO = ColumnInfo(name="x", dtype="float32", shape=(4,))
X = np.random.default_rng(0).random((1000, 4), np.float32)


class Store:
    """Has all rows, and remembers who asked for what."""

    def __init__(self) -> None:
        self.asked: list[np.ndarray] = []
        self.is_closed = False

    def sample_soon(self, request: HopRequest) -> Future[Hop]:
        raise NotImplementedError

    def gather_soon(
        self, of: TypeName, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        self.asked.append(ids)
        done: Future[np.ndarray] = Future()
        done.set_result(X[ids] if dims is None else X[ids][:, dims])
        return done

    def close(self) -> None:
        self.is_closed = True


def wanted_of_power_law(num: int, rng: np.random.Generator) -> np.ndarray:
    chances = 1 / np.arange(1, 1001) ** 0.9
    order = np.random.default_rng(5).permutation(1000)
    drawn: np.ndarray = order[rng.choice(1000, num, replace=False, p=chances / chances.sum())]
    return drawn


def test_rows_are_right_and_repeated_ones_are_not_asked_for() -> None:
    store, cache = Store(), FeatureCache(INFO, 1000, 100_000)
    owner = CachedStoreHandle(store, {("node", "x"): cache})
    rng = np.random.default_rng(1)
    for _ in range(200):
        ids = wanted_of_power_law(50, rng)
        assert np.array_equal(owner.gather_soon("node", "x", ids).result(), X[ids])
    asked = np.concatenate(store.asked)
    assert cache.num_slots == 1000
    assert len(np.unique(asked)) == len(asked)
    report = cache.report()
    assert report.misses == len(asked)
    assert report.hits + report.misses == 200 * 50
    assert report.fetched_bytes == 16 * len(asked)
    owner.close()
    assert store.is_closed


@pytest.mark.parametrize("policy", ["frequency", "degree"])
def test_a_tenth_of_the_rows_saves_a_third_of_a_power_law(policy: str) -> None:
    rng = np.random.default_rng(2)
    hot = np.random.default_rng(5).permutation(1000) if policy == "degree" else None
    row_bytes = 16 + 8 + 1 + 12
    cache = FeatureCache(INFO, 1000, 100 * row_bytes + (500 if hot is None else 0), hot)
    assert 95 <= cache.num_slots <= 105
    owner = CachedStoreHandle(Store(), {("node", "x"): cache})
    for _ in range(400):
        ids = wanted_of_power_law(50, rng)
        assert np.array_equal(owner.gather_soon("node", "x", ids).result(), X[ids])
    report = cache.report()
    assert report.hits > 0.3 * (report.hits + report.misses)


def test_a_cache_keeps_to_its_budget() -> None:
    for num_bytes in (0, 500, 5_000, 50_000):
        for hot in (None, np.arange(1000)):
            cache = FeatureCache(INFO, 1000, num_bytes, hot)
            assert cache.report().memory_bytes <= num_bytes + 64
            assert np.array_equal(cache.lookup(np.arange(5))[1], np.arange(5))


def test_the_hot_set_follows_what_is_wanted() -> None:
    cache = FeatureCache(INFO, 1000, 10_000)
    owner = CachedStoreHandle(Store(), {("node", "x"): cache})
    for low in (0, 500):
        for _ in range(200):
            ids = np.arange(low, low + 50)
            assert np.array_equal(owner.gather_soon("node", "x", ids).result(), X[ids])
        assert len(cache.lookup(np.arange(low, low + 50))[1]) == 0


class EncodedStore(Store):
    """Has encoded rows."""

    def __init__(self, info: ColumnInfo, values: np.ndarray) -> None:
        super().__init__()
        assert info.codec is not None
        self._encode, self._values = info.codec.encode, values

    def gather_soon(
        self, of: TypeName, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        self.asked.append(ids)
        done: Future[np.ndarray] = Future()
        done.set_result(self._encode(self._values[ids]))
        return done


@pytest.mark.parametrize("kind", ["sparse", "bits", "int8", "int4"])
@pytest.mark.parametrize("hot", [None, np.arange(0, 1000, 3)])
def test_encoded_rows_are_cached_encoded(kind: str, hot: np.ndarray | None) -> None:
    rng = np.random.default_rng(2)
    values = rng.random((1000, 50), np.float32)
    # Some rows are much longer than others, and some are empty.
    values[rng.random((1000, 50)) > rng.beta(0.3, 1.5, (1000, 1))] = 0
    if kind == "bits":
        values = (values != 0).astype(np.float32)
    features = kind if kind.startswith("int") else "auto"
    info = choose_form(Column.of("x", values), features, 1000)
    assert info.encoding is not None
    assert info.encoding.kind == kind
    store, cache = EncodedStore(info, values), FeatureCache(info, 1000, 20_000, hot)
    assert cache.report().memory_bytes <= 20_000 + 64
    owner = CachedStoreHandle(store, {("node", "x"): cache})
    for _ in range(300):
        ids = wanted_of_power_law(40, rng)
        rows = owner.gather_soon("node", "x", ids).result()
        assert np.array_equal(rows, store._encode(values[ids]))
    assert cache.report().hits > 2000
    assert sum(map(len, store.asked)) == cache.report().misses


def test_replies_of_another_shape_are_refused() -> None:
    for reply in (X[:1], X[:5, :2], np.zeros((5, 6), np.float32), np.zeros((5, 16), np.uint8)):
        cache = FeatureCache(INFO, 1000, 10_000)
        found, misses = cache.lookup(np.arange(5))
        with pytest.raises(DamagedGraphError, match="a store sent"):
            found.complete(misses, reply)
        with pytest.raises(DamagedGraphError, match="a store sent"):
            cache.admit(np.arange(5), reply)
        assert len(cache.lookup(np.arange(5))[1]) == 5


def test_a_full_cache_of_long_rows_is_not_moved_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(4)
    values = np.where(rng.random((4000, 60)) < 0.05, 1.5, 0).astype(np.float32)
    values[:, 0] = 2.5
    values[:400] = rng.random((400, 60))
    info = choose_form(Column.of("x", values), "auto", 4000)
    assert info.codec is not None
    assert info.codec.is_sparse
    cache = FeatureCache(info, 4000, 30_000, np.arange(400))
    monkeypatch.setattr(cache._slots, "_close_up", pytest.fail)
    for _ in range(20):
        ids = rng.permutation(400)[:50]
        found, misses = cache.lookup(ids)
        rows = info.codec.encode(values[ids[misses]])
        cache.admit(ids[misses], rows)
        assert np.array_equal(found.complete(misses, rows), info.codec.encode(values[ids]))
    assert cache.report().hits > 0


def test_other_columns_and_dimensions_pass_by() -> None:
    store = Store()
    owner = CachedStoreHandle(store, {("node", "x"): FeatureCache(INFO, 1000, 10_000)})
    for _ in range(2):
        owner.gather_soon("node", "z", np.arange(3)).result()
        assert owner.gather_soon("node", "x", np.arange(3), np.array([1])).result().shape == (3, 1)
    assert len(store.asked) == 4


def test_threads_share_a_cache() -> None:
    cache = FeatureCache(INFO, 1000, 8_000)
    owner = CachedStoreHandle(Store(), {("node", "x"): cache})
    wrong: list[np.ndarray] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            ids = wanted_of_power_law(40, rng)
            if not np.array_equal(owner.gather_soon("node", "x", ids).result(), X[ids]):
                wrong.append(ids)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_expected_draws_are_what_a_plain_count_gives(tmp_path: Path) -> None:
    write(homogeneous(200, 3000), tmp_path / "g", 3)
    graph = open_graph(tmp_path / "g")
    part = graph.part(1)
    plain: dict[int, float] = {}
    indptr, indices = part.indptr(NODE_TO_NODE), part.indices(NODE_TO_NODE)
    for node in range(len(indptr) - 1):
        sources = indices[indptr[node] : indptr[node + 1]]
        for source in sources.tolist():
            if graph.owner("node", np.array([source]))[0] != 1:
                plain[source] = plain.get(source, 0) + min(1, 4 / len(sources))
    hot = hot_by_degree(graph, 1, "node", {NODE_TO_NODE: 4})
    assert set(hot.tolist()) == set(plain)
    draws = [plain[i] for i in hot.tolist()]
    assert all(a >= b - 1e-9 for a, b in pairwise(draws))
    assert len(hot_by_degree(graph, 1, "node", {})) == 0


def test_tables_and_plain_twin_agree() -> None:
    rng = np.random.default_rng(3)
    slot_ids = rng.choice(500, 60, replace=False)
    slot_ids[::7] = hash_table.FREE
    places = np.full(128, hash_table.FREE, np.int32)
    hash_table.enter_slots(slot_ids, places)
    is_filled = rng.random(60) < 0.5
    ids = rng.integers(0, 500, 300)
    slots, counters = np.empty(300, np.int64), np.zeros(100, np.uint8)
    hash_table.find_slots(ids, places, slot_ids, is_filled, counters, slots)
    twin = {int(i): s for s, i in enumerate(slot_ids) if i != hash_table.FREE and is_filled[s]}
    assert slots.tolist() == [twin.get(node, hash_table.FREE) for node in ids.tolist()]
    assert np.array_equal(counters, np.bincount(ids % 100, minlength=100))


def test_counters_are_halved_before_they_overflow() -> None:
    places, slot_ids = np.full(2, hash_table.FREE, np.int32), np.empty(0, np.int64)
    counters, slots = np.array([255, 7, 0], np.uint8), np.empty(3, np.int64)
    ids, is_filled = np.array([0, 1, 1]), np.empty(0, np.bool_)
    hash_table.find_slots(ids, places, slot_ids, is_filled, counters, slots)
    assert slots.tolist() == [hash_table.FREE] * 3
    assert counters.tolist() == [128, 5, 0]


def test_memory_is_divided_by_size() -> None:
    assert divide(100, [3, 1]) == [75, 25]
    assert divide(100, []) == []
