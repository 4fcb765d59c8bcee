"""How bad lines are."""

from __future__ import annotations

import pytest

from headrace.observability.levels import Level, Levels


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("epoch 3  loss 0.5", Level.INFO),
        ("", Level.INFO),
        ("forewarned", Level.INFO),
        ("UserWarning: slow", Level.WARNING),
        ("warning: slow", Level.WARNING),
        ("ValueError: no", Level.ERROR),
        ("Out of memory", Level.ERROR),
    ],
)
def test_words_tell(line: str, level: Level) -> None:
    assert Levels().of(line) is level


def test_a_traceback_is_one_error() -> None:
    levels = Levels()
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1', "Oops", "on we go"]
    assert [levels.of(line).value for line in lines] == ["error", "error", "error", "info"]
