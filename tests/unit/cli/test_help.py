"""The help of every command, nested ones too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.cli import app

NUM_COLUMNS = 80
MAX_LINES = 40
"""A screen: 40 lines of 80 columns, what a terminal shows on a small laptop."""


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Words of a command and of every command below it."""
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*words, name))


COMMANDS = list(commands(get_command(app)))


def help_of(words: tuple[str, ...]) -> str:
    columns = {"COLUMNS": str(NUM_COLUMNS), "TERMINAL_WIDTH": str(NUM_COLUMNS)}
    result = CliRunner().invoke(app, [*words, "--help"], env=columns)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_nested_commands_are_among_them() -> None:
    assert {(), ("plan",), ("testbed", "up"), ("cluster", "discover")} <= set(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_fits_a_screen(words: tuple[str, ...]) -> None:
    lines = help_of(words).rstrip().splitlines()
    assert len(lines) <= MAX_LINES
    assert not any("<bool>" in line or "BOOLEAN" in line for line in lines)
    assert max(map(len, lines)) <= NUM_COLUMNS


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_an_example_of_the_command(words: tuple[str, ...]) -> None:
    own = " ".join(("headrace", *words))
    assert re.search(rf"Example: (sudo )?{own}\b", help_of(words))
