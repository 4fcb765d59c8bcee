"""Which tracker is meant, and what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import MissingExtraError, SpecError
from headrace.observability import trackers
from headrace.observability.trackers import make_tracker, numbers_of, step_of


@pytest.mark.parametrize("wanted", ["wandb", "", "mlflow:", "tensorboard:"])
def test_others_are_refused(wanted: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="unknown tracker"):
        make_tracker(wanted, tmp_path, "job")


@pytest.mark.parametrize("name", ["tensorboard", "mlflow"])
def test_a_missing_package_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=name) as caught:
        make_tracker(name, tmp_path, "job")
    assert "headrace[track]" in caught.value.remedy


def test_no_password_is_shown(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    tracker = make_tracker("mlflow:https://me:secret@host/x", tmp_path, "job")
    assert tracker.where == "experiment 'job' at https://host/x"


@pytest.mark.parametrize(
    ("figures", "step"),
    [
        ({"epoch": 3, "loss": 0.5}, 3),
        ({"epoch": 3, "iteration": 700}, 700),
        ({"step": 9, "epoch": 1}, 9),
        ({"epoch": True, "loss": 0.5}, 17),
        ({"epoch": -1}, 17),
        ({"epoch": 2.5}, 17),
        ({}, 17),
    ],
)
def test_figures_say_their_step(figures: dict[str, Any], step: int) -> None:
    assert step_of(figures, 17) == step


def test_only_finite_numbers_are_tracked() -> None:
    figures = {"a": 1, "b": 0.5, "c": "nan", "d": float("inf"), "e": True, "f": "text"}
    assert numbers_of(figures) == {"a": 1.0, "b": 0.5}
