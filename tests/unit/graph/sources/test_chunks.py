from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from headrace.graph.sources.chunks import RowStream

PIECES = [np.arange(0, 5), np.arange(5, 5), np.arange(5, 12), np.arange(12, 20)]


class Counted:
    """Twenty rows that can be begun at 0 and 12."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.stream = RowStream(np.dtype(np.int64), (), self.begin, self.rows_from)

    def begin(self, row: int) -> int:
        return 12 if row >= 12 else 0

    def rows_from(self, row: int) -> Iterator[np.ndarray]:
        self.begun.append(row)
        return iter(PIECES if row == 0 else PIECES[3:])


@pytest.mark.parametrize("step", [1, 3, 5, 7, 20])
def test_ranges_in_order_take_one_pass(step: int) -> None:
    counted = Counted()
    for start in range(0, 20, step):
        stop = min(start + step, 20)
        assert counted.stream.read(start, stop).tolist() == list(range(start, stop))
    assert counted.begun == [0]


def test_any_range_can_be_read() -> None:
    counted = Counted()
    rng = np.random.default_rng(0)
    for _ in range(200):
        start, stop = sorted(rng.integers(0, 21, 2).tolist())
        assert counted.stream.read(start, stop).tolist() == list(range(start, stop))


def test_a_jump_forwards_begins_at_the_nearest_place() -> None:
    counted = Counted()
    counted.stream.read(0, 2)
    assert counted.stream.read(15, 18).tolist() == [15, 16, 17]
    assert counted.begun == [0, 12]


def test_what_is_read_again_within_a_piece_costs_nothing() -> None:
    counted = Counted()
    counted.stream.read(13, 15)
    counted.stream.read(12, 13)
    assert counted.begun == [12]


def test_rows_beyond_the_end_are_missing() -> None:
    assert Counted().stream.read(18, 25).tolist() == [18, 19]
    assert Counted().stream.read(30, 31).tolist() == []
