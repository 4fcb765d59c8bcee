"""Parameters are cut into equal shards."""

from __future__ import annotations

from headrace.training.parameter_server.sharding import Piece, ShardLayout


def test_a_parameter_may_be_cut_anywhere() -> None:
    layout = ShardLayout.of([4, 0, 5, 1], 3)
    assert layout.starts == (0, 4, 4, 9)
    assert [layout.bounds(p) for p in range(3)] == [(0, 3), (3, 6), (6, 10)]
    assert layout.pieces(0) == (Piece(0, 0, 3),)
    assert layout.pieces(1) == (Piece(0, 3, 1), Piece(2, 0, 2))
    assert layout.pieces(2) == (Piece(2, 2, 3), Piece(3, 0, 1))


def test_a_server_may_have_nothing() -> None:
    layout = ShardLayout.of([1], 3)
    assert [layout.pieces(p) for p in range(3)] == [(), (), (Piece(0, 0, 1),)]
    assert ShardLayout.of([], 2).pieces(1) == ()
