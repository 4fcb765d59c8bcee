"""Pushes of several pieces: which copy counts, and when a round is applied."""

from __future__ import annotations

import pytest

from headrace.core.errors import SpecError
from headrace.rpc.sync_rounds import SyncRounds


class Rounds(SyncRounds[str]):
    """Keeps what was applied in each round."""

    def __init__(self) -> None:
        super().__init__(num_trainers=2)
        self.applied: list[list[str]] = []

    @property
    def num_rounds(self) -> int:
        return len(self.applied)

    def _apply(self, pushes: list[str]) -> None:
        self.applied.append(pushes)

    def push(self, rank: int, push: str, piece: int = 0, num_pieces: int = 1) -> None:
        with self._changed:
            if self._is_new(rank, len(self.applied) + 1):
                self._collect(rank, push, piece, num_pieces)


def test_last_missing_piece_applies_the_round_in_rank_order() -> None:
    rounds = Rounds()
    rounds.push(1, "b1", 1, 2)
    rounds.push(0, "a")
    assert rounds.missing() == [1]
    rounds.push(1, "b0", 0, 2)
    assert rounds.applied == [["a", "b0", "b1"]]
    assert rounds.missing() == [0, 1]


def test_last_copy_of_a_repeated_piece_counts() -> None:
    rounds = Rounds()
    rounds.push(0, "old")
    rounds.push(0, "new")
    rounds.push(1, "b")
    assert rounds.applied == [["new", "b"]]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_push_in_another_number_of_pieces_replaces_the_whole_push(before: int, after: int) -> None:
    rounds = Rounds()
    for piece in range(before):
        rounds.push(0, f"old{piece}", piece, before)
    for piece in range(after):
        rounds.push(0, f"new{piece}", piece, after)
    rounds.push(1, "b")
    assert rounds.applied == [[*(f"new{piece}" for piece in range(after)), "b"]]


def test_round_is_not_applied_before_all_pieces_of_a_longer_push_arrived() -> None:
    rounds = Rounds()
    rounds.push(0, "old")
    rounds.push(0, "new0", 0, 2)
    rounds.push(1, "b")
    assert rounds.applied == []
    assert rounds.missing() == [0]
    rounds.push(0, "new1", 1, 2)
    assert rounds.applied == [["new0", "new1", "b"]]


def test_push_of_a_later_round_is_refused() -> None:
    rounds = Rounds()
    with rounds._changed, pytest.raises(SpecError, match="0 are done"):
        rounds._is_new(0, 2)
