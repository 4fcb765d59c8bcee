from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from headrace.graph.service.embeddings import (
    Embedding,
    SparseOptimizer,
    create_embedding,
    sum_duplicates,
)

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
    eps = 1e-10 if kind == "adagrad" else 1e-8
    ours = Embedding(values, SparseOptimizer(kind, lr=0.05, eps=eps))
    for _ in range(6):
        rows = rng.integers(0, 12, 9)
        factors = rng.standard_normal((9, 4)).astype(np.float32)
        optimizer.zero_grad()
        (theirs(torch.tensor(rows)) * torch.tensor(factors)).sum().backward()
        optimizer.step()
        ours.push(rows, factors)
    np.testing.assert_allclose(ours.values, theirs.weight.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_first_values_follow_from_original_ids(tmp_path: Path) -> None:
    optimizer = SparseOptimizer("adam")
    originals = np.array([7, 3, 11, 0])
    whole = create_embedding(tmp_path / "a", "emb", originals, 16, 5, optimizer)
    piece = create_embedding(tmp_path / "b", "emb", originals[2:], 16, 5, optimizer)
    other = create_embedding(tmp_path / "c", "emb", originals, 16, 6, optimizer)
    np.testing.assert_array_equal(whole.values[2:], piece.values)
    assert not np.array_equal(whole.values, other.values)
    many = create_embedding(tmp_path / "d", "emb", np.arange(70_000), 16, 5, optimizer).values
    np.testing.assert_array_equal(many[originals], whole.values)
    assert np.abs(many).max() <= 0.25
    assert abs(float(many.mean())) < 1e-3
    assert abs(float(many.std()) - 0.25 / 3**0.5) < 1e-3


def test_others_map_what_was_pushed(tmp_path: Path) -> None:
    embedding = create_embedding(tmp_path, "emb", np.arange(5), 2, 0, SparseOptimizer("sgd", 1.0))
    seen = np.memmap(tmp_path / "emb.bin", np.float32, "r", shape=(5, 2))
    before = seen[3].copy()
    embedding.push(np.array([3, 3]), np.ones((2, 2), np.float32))
    np.testing.assert_allclose(seen[3], before - 2, rtol=1e-6)


def test_a_part_without_nodes_has_an_embedding(tmp_path: Path) -> None:
    embedding = create_embedding(tmp_path, "emb", np.empty(0, np.int64), 2, 0, SparseOptimizer())
    assert embedding.values.shape == (0, 2)
