"""Rows come from wherever they are, into one array, in the order asked for."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from headrace.graph.sampling.feature_gather import FeatureColumns, FeatureGather
from headrace.graph.sampling.remote_scores import RemoteScores
from headrace.graph.sampling.store_pool import StorePool
from headrace.graph.schema import TypeName


class Asked:
    """A store that has some rows and remembers what it gave."""

    def __init__(self, first: int, values: np.ndarray) -> None:
        self._first, self._values = first, values
        self.ids: list[np.ndarray] = []

    def sample_soon(self, request: Any) -> Any:
        raise NotImplementedError

    def gather_soon(
        self, of: TypeName, column: str, ids: np.ndarray, dims: np.ndarray | None = None
    ) -> Future[np.ndarray]:
        self.ids.append(ids)
        done: Future[np.ndarray] = Future()
        rows = self._values[ids - self._first]
        done.set_result(rows if dims is None else rows[:, dims])
        return done

    def close(self) -> None:
        pass


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint16", "int64", "bool", "float64"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (4,), (2, 5), (0,)])
@pytest.mark.parametrize("num_parts", [1, 3, 6])
@pytest.mark.parametrize("remote", [(), (0,), (0, 2, 4)])
def test_gathers_as_numpy_does(
    dtype: str, shape: tuple[int, ...], num_parts: int, remote: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    values = (10 * rng.standard_normal((40, *shape))).astype(dtype)
    # One part is empty.
    cuts = sorted([0, *rng.integers(0, 40, num_parts - 1).tolist(), 40])
    offsets = np.array([*cuts, 40] if num_parts > 1 else cuts)
    pieces = [values[a:b].copy() for a, b in pairwise(offsets)]
    stores = {
        part: Asked(int(offsets[part]), pieces[part]) for part in remote if part < len(pieces)
    }
    owners = StorePool({part: partial(stores.__getitem__, part) for part in stores})
    rows = FeatureColumns(
        "node", "x", offsets, [None if p in stores else v for p, v in enumerate(pieces)]
    )
    for may_repeat in (False, True):
        ids = rng.integers(0, 40, 100)
        out = np.zeros((100, *shape), dtype)
        FeatureGather(rows, ids, owners, may_repeat).into(out)
        np.testing.assert_array_equal(out, values[ids])
        for store in stores.values():
            if may_repeat and store.ids:
                assert len(np.unique(store.ids[-1])) == len(store.ids[-1])
    FeatureGather(rows, np.empty(0, np.int64), owners).into(np.empty((0, *shape), dtype))


def test_dimensions_that_are_not_requested_are_zero() -> None:
    values = np.arange(1, 61, dtype=np.float32).reshape(20, 3)
    stores = {0: Asked(0, values[:10]), 1: Asked(10, values[10:])}
    offsets, weights = np.array([0, 10, 20]), np.ones(20, np.float32)
    ids = np.array([3, 19, 12])
    for home in (0, 1):
        scores = RemoteScores(home, "node", weights, 0.5, "x", np.array([0, 2]))
        for is_mapped in (False, True):
            parts = [None, values[10:].copy()] if is_mapped else [None, None]
            remote = {0: stores[0]} if is_mapped else stores
            pool = StorePool({part: partial(remote.__getitem__, part) for part in remote})
            out = np.full((3, 3), -1, np.float32)
            rows = FeatureColumns("node", "x", offsets, parts)
            FeatureGather(rows, ids, pool, scores=scores).into(out)
            expected = values[ids]
            expected[[0] if home else [] if is_mapped else [1, 2], 1] = 0
            np.testing.assert_array_equal(out, expected)
            other = np.full((3, 3), -1, np.float32)
            labels = FeatureColumns("node", "y", offsets, parts)
            FeatureGather(labels, ids, pool, scores=scores).into(other)
            np.testing.assert_array_equal(other, values[ids])


def test_rows_need_not_be_aligned_and_ids_become_longer() -> None:
    values = np.arange(2 * 21, dtype=np.float32)[1:41].reshape(20, 2)
    rows = FeatureColumns("node", "x", np.array([0, 20]), [values])
    ids = np.array([3, 19, 0])
    out = np.empty((3, 2), np.float32)
    FeatureGather(rows, ids, StorePool()).into(out)
    np.testing.assert_array_equal(out, values[ids])
    short = FeatureColumns(
        "node", "ids", np.array([0, 20]), [np.arange(20, dtype=np.uint32)[::-1].copy()]
    )
    longer = np.empty(3, np.int64)
    FeatureGather(short, ids, StorePool()).into(longer)
    assert longer.tolist() == [16, 0, 19]
