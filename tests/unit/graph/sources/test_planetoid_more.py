from __future__ import annotations

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.kernels.sparse import multiply_rows
from headrace.graph.sources.planetoid import SparseRows, projected


def rows(num_rows: int = 50, num_columns: int = 40, seed: int = 0) -> tuple[SparseRows, np.ndarray]:
    rng = np.random.default_rng(seed)
    dense = np.where(rng.random((num_rows, num_columns)) < 0.1, rng.random(), 0)
    dense = dense.astype(np.float32)
    dense[[0, 7, num_rows - 1]] = 0
    places = np.nonzero(dense)
    indptr = np.concatenate([[0], np.cumsum(np.count_nonzero(dense, axis=1))])
    return SparseRows(indptr, places[1], dense[places], num_columns), dense


@pytest.mark.parametrize(("start", "stop"), [(0, 50), (7, 8), (3, 31), (50, 50)])
def test_dense_rows_are_the_matrix(start: int, stop: int) -> None:
    sparse, dense = rows()
    column = sparse.column("x")
    assert np.array_equal(column.read(start, stop), dense[start:stop])
    assert (column.dtype, column.shape) == (np.dtype(np.float32), (40,))


def test_entries_of_one_place_add_up() -> None:
    twice = SparseRows(np.array([0, 2]), np.array([1, 1]), np.array([2.0, 3.0]), 3)
    assert twice.dense(0, 1).tolist() == [[0, 5, 0]]


@pytest.mark.parametrize(("start", "stop"), [(0, 50), (6, 9), (50, 50)])
def test_the_kernel_multiplies_like_numpy(start: int, stop: int) -> None:
    sparse, dense = rows()
    matrix = np.random.default_rng(1).random((40, 5), np.float32)
    product = multiply_rows(sparse.indptr, sparse.indices, sparse.values, matrix, start, stop)
    assert np.allclose(product, dense[start:stop] @ matrix, atol=1e-6)


def test_projections_depend_on_the_seed_alone() -> None:
    sparse, _ = rows()
    whole = projected(sparse, "x", 16, 3).read(0, 50)
    again = projected(sparse, "x", 16, 3)
    assert np.array_equal(np.concatenate([again.read(0, 20), again.read(20, 50)]), whole)
    assert not np.array_equal(projected(sparse, "x", 16, 4).read(0, 50), whole)
    assert not whole[0].any()


def test_projections_keep_lengths() -> None:
    sparse, dense = rows(200, 3000)
    lengths = np.linalg.norm(dense, axis=1)
    # Of variance one per entry of a row of length one: lengths grow by the root of the width.
    found = np.linalg.norm(projected(sparse, "x", 128, 0).read(0, 200), axis=1) / 128**0.5
    filled = lengths > 0
    assert np.abs(found[filled] / lengths[filled] - 1).max() < 0.3
    assert np.abs((found[filled] / lengths[filled]).mean() - 1) < 0.02


@pytest.mark.parametrize(
    ("indptr", "indices", "values"),
    [
        ([0, 1], [0, 1], [1.0, 1.0]),
        ([0, 2], [0, 1], [1.0]),
        ([0, 2, 1], [0], [1.0]),
        ([], [], []),
        ([0, 1], [3], [1.0]),
        ([0, 1], [-1], [1.0]),
    ],
)
def test_wrong_sparse_rows_are_named(
    indptr: list[int], indices: list[int], values: list[float]
) -> None:
    sparse = SparseRows(np.array(indptr, int), np.array(indices, int), np.array(values), 3)
    with pytest.raises(SpecError, match=r"of features|features has"):
        sparse.check("features")
