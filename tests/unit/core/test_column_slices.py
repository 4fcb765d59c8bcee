"""Values of columns between trainers, and when they are fewer than rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.column_slices import busiest, column_values, columns_are_fewer, slice_widths
from headrace.core.full_graph import FullGraphFigures, RowSwap


@given(st.integers(0, 300), st.integers(1, 20))
def test_every_column_is_in_one_slice(width: int, num: int) -> None:
    widths = slice_widths(width, num)
    assert len(widths) == num
    assert widths.sum() == width
    assert widths.max() - widths.min() <= 1


def test_values_depend_on_nodes_alone() -> None:
    there, back = column_values((5, 3), (4, 1), 5)
    # The first trainer has 2 columns, the second 3.
    assert there.tolist() == [[0, 5 * 3], [3 * 2, 0]]
    assert back.tolist() == [[0, 1 * 2], [4 * 3, 0]]
    assert busiest(there) == 15


@pytest.mark.parametrize(("num", "rows_of_each", "is_fewer"), [(4, 37, False), (4, 38, True)])
def test_columns_are_fewer_beyond_twice_the_nodes_of_a_part(
    num: int, rows_of_each: int, is_fewer: bool
) -> None:
    # 25 nodes each: 2 * 25 * 3/4 rows are as many values as columns.
    rows = np.zeros((num, num))
    rows[0, 1:] = rows_of_each / (num - 1)
    assert columns_are_fewer(rows, [25] * num, [25] * num, 16) is is_fewer


def test_swaps_of_slices_have_these_volumes() -> None:
    rows = ((0, 1), (2, 0))
    given = {"nodes": (5, 3), "edges": (9, 9), "halo": rows, "cover": rows}
    figures = FullGraphFigures.model_validate(given)
    there, back = column_values((5, 3), (5, 3), 5)
    for slices, values in (("columns", there), ("rows", back)):
        swap = RowSwap.model_validate({"row_bytes": 20, "slices": slices})
        np.testing.assert_array_equal(figures.volumes(swap), 4 * values)
        returned = swap.model_copy(update={"is_back": True})
        np.testing.assert_array_equal(figures.volumes(returned), 4 * values.T)
        turned = figures.ordered([1, 0]).volumes(swap)
        assert turned.sum() == 4 * column_values((3, 5), (3, 5), 5)[slices == "rows"].sum()


def test_older_swaps_keep_their_form() -> None:
    assert RowSwap(row_bytes=8).model_dump(mode="json").keys() == {"row_bytes", "is_sum", "is_back"}
