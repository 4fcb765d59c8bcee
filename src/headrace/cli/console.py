"""How loud headrace is: what goes to standard error, and in which colours.

Results go to standard output and errors are always told. Notes and progress are told unless the
user says `--quiet`; details only with `--verbose`.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from contextvars import ContextVar
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console


class Level(IntEnum):
    """How much is told."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_level: ContextVar[Level] = ContextVar("_level", default=Level.NORMAL)
_begin_s: ContextVar[float] = ContextVar("_begin_s", default=0.0)


def begin() -> None:
    """A command begins; nobody has said yet how loud it shall be."""
    _level.set(Level.NORMAL)
    _begin_s.set(time.monotonic())


def set_level(level: Level) -> None:
    """Be that loud from now on."""
    _level.set(level)


def is_quiet() -> bool:
    """Whether only results and errors are told."""
    return _level.get() == Level.QUIET


def is_verbose() -> bool:
    """Whether everything is told."""
    return _level.get() == Level.VERBOSE


def has_bars() -> bool:
    """Whether progress is a bar that moves: on a terminal, unless every line is wanted."""
    return sys.stderr.isatty() and _level.get() == Level.NORMAL


def note(line: str) -> None:
    """Tell what goes on; with `--verbose` also when, counted from the command's begin."""
    if is_quiet():
        return
    stamp = f"{time.monotonic() - _begin_s.get():8.3f} s  " if is_verbose() else ""
    typer.echo(_broken_between_words(f"{stamp}{line}"), err=True)


def detail(line: str) -> None:
    """Tell what only `--verbose` wants to know."""
    if is_verbose():
        note(line)


def complain(problem: str, remedy: str, link: str) -> None:
    """Tell of an error: a line for the problem, one for the remedy, one for the page that helps."""
    label = styled("error:", fg="red", bold=True)
    typer.echo(f"{label} {_one_line(problem)}", err=True)
    typer.echo(f"  try: {_one_line(remedy)}", err=True)
    typer.echo(styled(f"  see: {link}", dim=True), err=True)


def styled(text: str, **style: Any) -> str:
    """Text in colours, unless NO_COLOR is set (https://no-color.org)."""
    return text if os.environ.get("NO_COLOR") else typer.style(text, **style)


def console(stderr: bool = False, width: int | None = None) -> Console:
    """Where tables and bars are drawn; it minds NO_COLOR itself."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr, width=width)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _broken_between_words(line: str) -> str:
    """A long line as a terminal should show it; elsewhere it stays one line."""
    width = shutil.get_terminal_size().columns
    if len(line) <= width or not sys.stderr.isatty():
        return line
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
