from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from headrace.training.best_model import BestKeeper  # noqa: E402


def state(value: float) -> Any:
    return lambda: {"weight": torch.tensor([value])}


def test_the_best_is_kept_and_patience_ends(tmp_path: Path) -> None:
    keeper = BestKeeper(tmp_path / "new")
    scores = [0.5, 0.7, 0.7, math.nan, 0.6]
    assert [keeper.show(score, state(score), 3) for score in scores] == [False] * 4 + [True]
    assert keeper.path is not None
    kept = torch.load(keeper.path, weights_only=True)
    assert kept["weight"].tolist() == pytest.approx([0.7])
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["best.pt"]


def test_other_trainers_write_nothing() -> None:
    keeper = BestKeeper(None)
    assert not keeper.show(0.5, lambda: pytest.fail("not asked for"), 2)
    assert keeper.path is None
    assert keeper.best == 0.5


def test_a_keeper_goes_on_where_another_was(tmp_path: Path) -> None:
    before = BestKeeper(tmp_path / "one")
    for score in (0.7, 0.6):
        before.show(score, state(score), 3)
    after = BestKeeper(tmp_path / "two")
    after.load_state_dict(before.state_dict())
    assert after.path is not None
    assert torch.load(after.path, weights_only=True)["weight"].tolist() == pytest.approx([0.7])
    assert not after.show(0.6, state(0.6), 3)
    assert after.show(0.6, state(0.6), 3)
    other = BestKeeper(None)
    other.load_state_dict(before.state_dict())
    assert other.best == 0.7
