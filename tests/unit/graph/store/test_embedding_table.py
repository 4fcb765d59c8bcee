from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from headrace.graph.store.embedding_table import (
    Embedding,
    EmbeddingSpec,
    make_embedding,
    open_embedding,
    sum_duplicates,
)
from headrace.graph.store.write_ahead_log import Change
from tests.support.disks import fill, small_disk

Kind = Literal["sgd", "adagrad", "adam"]


def test_values_of_equal_rows_are_summed() -> None:
    rows, sums = sum_duplicates(np.array([4, 0, 4, 2, 0, 4]), np.arange(12.0).reshape(6, 2))
    assert rows.tolist() == [0, 2, 4]
    assert sums.tolist() == [[10, 12], [6, 7], [14, 17]]


def test_nothing_is_summed_to_nothing() -> None:
    rows, sums = sum_duplicates(np.empty(0, np.int64), np.empty((0, 3), np.float32))
    assert rows.shape == (0,)
    assert sums.shape == (0, 3)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_steps_are_those_of_torch(kind: Kind) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values = rng.standard_normal((20, 4)).astype(np.float32)
    theirs = torch.nn.Embedding(20, 4, sparse=True, _weight=torch.tensor(values))
    options = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}
    make = options.get(kind, torch.optim.SparseAdam)
    optimizer = make(theirs.parameters(), lr=0.05)
    spec = EmbeddingSpec(dim=4, optimizer=kind, eps=1e-10 if kind == "adagrad" else 1e-8)
    ours = Embedding(spec, [values, *(np.zeros_like(values) for _ in range(spec.num_states))])
    for _ in range(6):
        rows = rng.integers(0, 12, 9)
        factors = rng.standard_normal((9, 4)).astype(np.float32)
        optimizer.zero_grad()
        (theirs(torch.tensor(rows)) * torch.tensor(factors)).sum().backward()
        optimizer.step()
        ours.step(*sum_duplicates(rows, factors), 0.05)
    np.testing.assert_allclose(ours.values, theirs.weight.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_first_values_follow_from_original_ids() -> None:
    spec = EmbeddingSpec(dim=16, seed=5)
    originals = np.array([7, 3, 11, 0])
    whole = make_embedding(None, originals, spec)
    piece = make_embedding(None, originals[2:], spec)
    other = make_embedding(None, originals, EmbeddingSpec(dim=16, seed=6))
    np.testing.assert_array_equal(whole.values[2:], piece.values)
    assert not np.array_equal(whole.values, other.values)
    many = make_embedding(None, np.arange(70_000), spec).values
    np.testing.assert_array_equal(many[originals], whole.values)
    assert np.abs(many).max() <= 0.25
    assert abs(float(many.mean())) < 1e-3
    assert abs(float(many.std()) - 0.25 / 3**0.5) < 1e-3
    zeros = make_embedding(None, originals, EmbeddingSpec(dim=16, bound=0.0))
    assert not zeros.values.any()


def test_others_map_what_was_changed(tmp_path: Path) -> None:
    embedding = make_embedding(tmp_path, np.arange(5), EmbeddingSpec(dim=2, optimizer="sgd"))
    seen = np.memmap(tmp_path / "values.bin", np.float32, "r", shape=(5, 2))
    before = seen[3].copy()
    embedding.step(np.array([3]), np.full((1, 2), 2, np.float32), 1.0)
    np.testing.assert_allclose(seen[3], before - 2, rtol=1e-6)


def test_a_part_without_nodes_has_an_embedding(tmp_path: Path) -> None:
    spec = EmbeddingSpec(dim=2)
    embedding = make_embedding(tmp_path, np.empty(0, np.int64), spec)
    embedding.step(np.empty(0, np.int64), np.empty((0, 2), np.float32), 0.1)
    assert open_embedding(tmp_path, 0, spec).num_steps == 1


def steps(embedding: Embedding, first: int, last: int) -> None:
    for number in range(first, last):
        rng = np.random.default_rng(number)
        rows = np.flatnonzero(rng.random(30) < 0.4)
        sums = rng.standard_normal((len(rows), 3)).astype(np.float32)
        embedding.step(rows, sums, 0.1, counts=number != 2)


class KilledError(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_a_process_that_ends_in_a_step_leaves_it_made_or_not(tmp_path: Path, after: int) -> None:
    """As if it was killed after having changed so many of three arrays; then it goes on."""
    spec = EmbeddingSpec(dim=3, seed=1)
    expected = make_embedding(None, np.arange(30), spec)
    steps(expected, 0, 8)
    embedding = make_embedding(tmp_path, np.arange(30), spec)
    steps(embedding, 0, 4)

    class Dying(np.ndarray):
        def __setitem__(self, key: object, value: object) -> None:
            raise KilledError

    arrays = list(embedding._arrays)
    if after < 3:
        arrays[after] = arrays[after].view(Dying)
        embedding._arrays = tuple(arrays)
        with pytest.raises(KilledError):
            steps(embedding, 4, 5)
    else:
        steps(embedding, 4, 5)
    again = open_embedding(tmp_path, 30, spec)
    assert (again.num_rounds, again.num_steps) == (5, 4)
    steps(again, 5, 8)
    for ours, theirs in zip(again._arrays, expected._arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert (again.num_rounds, again.num_steps) == (8, 7)


def test_a_note_that_was_cut_is_no_note(tmp_path: Path) -> None:
    """Wherever a journal is cut, the step before is what is there, or the step itself."""
    spec = EmbeddingSpec(dim=3, optimizer="sgd")
    embedding = make_embedding(tmp_path, np.arange(30), spec)
    steps(embedding, 0, 3)
    before = embedding.values.copy()
    files = [tmp_path / "journal0", tmp_path / "journal1"]
    old = [file.read_bytes() for file in files]
    steps(embedding, 3, 4)
    newest = next(i for i in (0, 1) if files[i].read_bytes() != old[i])
    whole = files[newest].read_bytes()
    for cut in range(0, len(whole), 7):
        # The header is written last: until then there is none.
        files[newest].write_bytes(bytes(min(cut, 40)) + whole[40:cut])
        embedding.values[:] = before
        found = open_embedding(tmp_path, 30, spec)
        assert found.num_rounds == 3
        np.testing.assert_array_equal(found.values, before)


SMALL = 1 << 20


def test_space_for_rows_is_taken_before_they_are_promised(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", SMALL) as disk:
        spec = EmbeddingSpec(dim=64)
        with pytest.raises(OSError, match="No space left") as failed:
            make_embedding(disk, np.arange(2000), spec)
        assert str(failed.value.filename).startswith(str(disk))
        assert not list(disk.iterdir())
        embedding = make_embedding(disk, np.arange(1000), spec)
        fill(disk)
        # Writing to the rows themselves needs no space.
        embedding._make(Change(1, 1, np.arange(1000), [np.ones((1000, 64), np.float32)] * 3))
        assert (embedding.values == 1).all()


def test_a_change_that_cannot_be_logged_is_not_made(tmp_path: Path) -> None:
    spec, large = EmbeddingSpec(dim=3, seed=1), np.arange(30).repeat(400)
    expected = make_embedding(None, np.arange(30), spec)
    with small_disk(tmp_path / "disk", SMALL) as disk:
        embedding = make_embedding(disk, np.arange(30), spec)
        for each in (expected, embedding):
            steps(each, 0, 3)
        filler = fill(disk)
        # Twice: the last complete change is in one of two files.
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                embedding.put(large, [np.ones((len(large), 3), np.float32)] * 3, 9)
        assert open_embedding(disk, 30, spec).num_rounds == 3
        filler.unlink()
        for each in (expected, embedding):
            steps(each, 3, 6)
        np.testing.assert_array_equal(embedding.values, expected.values)
        np.testing.assert_array_equal(open_embedding(disk, 30, spec).values, expected.values)
