"""Trainers bring gradients to a store."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from headrace.core.errors import SpecError
from headrace.graph.store.embedding_service import Embeddings, EmbeddingService, GradientPush
from headrace.graph.store.embedding_table import EmbeddingSpec, make_embedding
from headrace.graph.store.shard import Shard, ShardRows

SPEC = EmbeddingSpec(dim=2, optimizer="sgd", num_trainers=3)
SHARD = Shard(1, {}, {("node", "ids"): ShardRows(10, np.arange(20), "int64")})


def learning() -> EmbeddingService:
    return EmbeddingService(make_embedding(None, np.arange(20), SPEC))


def gradient_push(
    rank: int, number: int = 1, rows: tuple[int, ...] = (1, 4), piece: int = 0, pieces: int = 1
) -> GradientPush:
    gradients = np.full((len(rows), 2), 0.1 + rank, np.float32)
    own = np.array(rows, np.int64)
    return GradientPush(rank, number, piece, pieces, bool(rows), 0.5, own, gradients)


def test_sums_do_not_depend_on_who_comes_first() -> None:
    results = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        rows = learning()
        made = [rows.push(gradient_push(rank), timeout_s=0) for rank in order]
        assert made == [False, False, True]
        results.append(rows.embedding.values.copy())
    first = learning().embedding.values
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])
    np.testing.assert_allclose(results[0][4], first[4] - 0.5 * 3.3, rtol=1e-5)
    np.testing.assert_array_equal(results[0][5], first[5])


def test_what_is_brought_again_counts_once() -> None:
    rows, expected = learning(), learning()
    for rank in (0, 1, 2):
        expected.push(gradient_push(rank), timeout_s=0)
    for rank in (0, 1, 1, 0, 2):
        rows.push(gradient_push(rank), timeout_s=0)
    # After the round, as if the answer got lost.
    assert rows.push(gradient_push(0), timeout_s=0)
    np.testing.assert_array_equal(rows.embedding.values, expected.embedding.values)
    assert rows.embedding.num_steps == 1


def test_pieces_are_waited_for() -> None:
    rows, expected = learning(), learning()
    for rank in (0, 1, 2):
        expected.push(gradient_push(rank), timeout_s=0)
    assert not rows.push(gradient_push(0), timeout_s=0)
    assert not rows.push(gradient_push(1), timeout_s=0)
    assert not rows.push(gradient_push(2, rows=(4,), piece=1, pieces=2), timeout_s=0)
    assert rows.push(gradient_push(2, rows=(1,), piece=0, pieces=2), timeout_s=0)
    np.testing.assert_array_equal(rows.embedding.values, expected.embedding.values)


def test_a_round_without_gradients_is_no_step() -> None:
    rows = learning()
    for rank in (0, 1, 2):
        rows.push(gradient_push(rank, rows=()), timeout_s=0)
    assert (rows.embedding.num_rounds, rows.embedding.num_steps) == (1, 0)


def test_trainers_wait_for_each_other() -> None:
    rows = learning()
    made: list[bool] = []
    threads = [
        threading.Thread(target=lambda r=rank: made.append(rows.push(gradient_push(r), 60)))
        for rank in (0, 1)
    ]
    for thread in threads:
        thread.start()
    assert rows.push(gradient_push(2), 60)
    for thread in threads:
        thread.join()
    assert made == [True, True]


def test_who_waits_is_let_go_at_the_end() -> None:
    rows = learning()
    made: list[bool] = []
    thread = threading.Thread(target=lambda: made.append(rows.push(gradient_push(0), 60)))
    thread.start()
    rows.close()
    thread.join()
    assert made == [False]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (gradient_push(0, 2), "of step 2, 0 are done"),
        (gradient_push(3), "there are 3 trainers"),
        (gradient_push(0, rows=(4, 1)), "not ascending"),
        (gradient_push(0, rows=(4, 4)), "not ascending"),
    ],
)
def test_what_cannot_be_right_is_refused(wrong: GradientPush, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        learning().push(wrong, timeout_s=0)


def test_memory_is_bounded_by_the_rows() -> None:
    rows = learning()
    rows.push(gradient_push(0, rows=tuple(range(15)), pieces=3), timeout_s=0)
    with pytest.raises(SpecError, match="more rows than there are"):
        rows.push(gradient_push(0, rows=tuple(range(15)), piece=1, pieces=3), timeout_s=0)


def test_a_store_that_starts_again_finds_what_it_had(tmp_path: Path) -> None:
    first = Embeddings(SHARD, tmp_path)
    first.make("node", "a", SPEC)
    first.make("node", "b", EmbeddingSpec(dim=3))
    first.make("node", "a", SPEC)
    for rank in (0, 1, 2):
        first.optimizer_shard("node", "a").push(gradient_push(rank), timeout_s=0)
    again = Embeddings(SHARD, tmp_path)
    for column in ("a", "b", "b.state0", "b.state1"):
        ours, theirs = again.rows("node", column), first.rows("node", column)
        assert ours is not None
        assert theirs is not None
        assert ours.first == 10
        np.testing.assert_array_equal(ours.values, theirs.values)
    # The last one's answer got lost, and the next round is this one's.
    assert again.optimizer_shard("node", "a").push(gradient_push(2), timeout_s=0)
    assert not again.optimizer_shard("node", "a").push(gradient_push(2, 2), timeout_s=0)


def test_one_that_was_not_made_as_a_whole_is_made_anew(tmp_path: Path) -> None:
    first = Embeddings(SHARD, tmp_path)
    first.make("node", "a", SPEC)
    (tmp_path / "0" / "embedding.json").unlink()
    again = Embeddings(SHARD, tmp_path)
    assert again.rows("node", "a") is None
    again.make("node", "a", SPEC)
    assert Embeddings(SHARD, tmp_path).rows("node", "a") is not None


def test_trainers_must_agree() -> None:
    embeddings = Embeddings(SHARD)
    embeddings.make("node", "a", SPEC)
    with pytest.raises(SpecError, match="dim 4 and 2"):
        embeddings.make("node", "a", EmbeddingSpec(dim=4, optimizer="sgd", num_trainers=3))
    with pytest.raises(SpecError, match="no nodes of type"):
        embeddings.make("edge", "a", SPEC)
    with pytest.raises(SpecError, match="has a column 'ids' already"):
        embeddings.make("node", "ids", SPEC)
    with pytest.raises(SpecError, match="cannot be called"):
        embeddings.make("node", "a.state0", SPEC)
    with pytest.raises(SpecError, match="has no embedding"):
        embeddings.optimizer_shard("node", "b")
