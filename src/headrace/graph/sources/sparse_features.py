"""Features that are stored sparsely, given row by row as dense ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.core.errors import SpecError
from headrace.graph.kernels.projecting import multiply_rows
from headrace.graph.source import Column


@dataclass(frozen=True)
class SparseRows:
    """A matrix by rows (CSR).

    Attributes:
        indptr: Where each row begins; one more.
        indices: Columns of the entries.
        values: The entries.
        num_columns: How wide the matrix is.
    """

    indptr: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    num_columns: int

    def check(self, what: str) -> None:
        """Test that the arrays fit each other.

        Raises:
            SpecError: They do not.
        """
        lengths = np.diff(self.indptr)
        if (
            len(self.indptr) == 0
            or bool((lengths < 0).any())
            or int(self.indptr[-1]) != len(self.indices)
            or len(self.indices) != len(self.values)
        ):
            raise SpecError(f"the sparse rows of {what} do not fit their entries", "save it anew")
        if self.indices.size and not (
            int(self.indices.min()) >= 0 and int(self.indices.max()) < self.num_columns
        ):
            raise SpecError(
                f"{what} has entries outside of its {self.num_columns} columns", "save it anew"
            )

    def dense(self, start: int, stop: int) -> np.ndarray:
        """Rows `start` to `stop` as `float32`; entries of one place add up."""
        rows = np.zeros((stop - start, self.num_columns), np.float32)
        where = slice(self.indptr[start], self.indptr[stop])
        lengths = np.diff(self.indptr[start : stop + 1])
        places = np.repeat(np.arange(stop - start), lengths), self.indices[where]
        np.add.at(rows, places, self.values[where].astype(np.float32))
        return rows

    def column(self, name: str) -> Column:
        """All rows as a dense column."""
        return Column(name, np.dtype(np.float32), (self.num_columns,), self.dense)


def projected(rows: SparseRows, name: str, width: int, seed: int) -> Column:
    """Rows multiplied by a sparse random matrix, which keeps distances (Achlioptas 2003).

    A third of the matrix is plus or minus the root of 3, the rest is zero: rows of length one get
    entries of variance one.

    Args:
        rows: What to project.
        name: Of the column.
        width: Of the result.
        seed: Of the matrix.
    """
    rng = np.random.default_rng(seed)
    dice = rng.integers(0, 6, (rows.num_columns, width), np.int8)
    matrix = (dice == 0).astype(np.float32) - (dice == 1)
    matrix *= np.float32(3**0.5)
    values = rows.values.astype(np.float32)

    def read(start: int, stop: int) -> np.ndarray:
        product: np.ndarray = multiply_rows(rows.indptr, rows.indices, values, matrix, start, stop)
        return product

    return Column(name, np.dtype(np.float32), (width,), read)
