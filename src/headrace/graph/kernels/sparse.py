"""Product of a sparse and a dense matrix."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def multiply_rows(indptr, indices, values, matrix, start, stop):
    """Rows `start` to `stop` of a sparse matrix (CSR) times a dense `float32` matrix."""
    width = matrix.shape[1]
    result = np.zeros((stop - start, width), np.float32)
    for row in range(start, stop):
        for entry in range(indptr[row], indptr[row + 1]):
            factors = matrix[indices[entry]]
            value = values[entry]
            for k in range(width):
                result[row - start, k] += value * factors[k]
    return result
