"""Output on standard error: verbosity and colours.

Results go to standard output; errors are always printed. Notes and progress are printed unless
`--quiet` is given, details only with `--verbose`.
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
    """Verbosity."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_level: ContextVar[Level] = ContextVar("_level", default=Level.NORMAL)
_begin_s: ContextVar[float] = ContextVar("_begin_s", default=0.0)


def begin() -> None:
    """Reset verbosity and clock at the start of a command."""
    _level.set(Level.NORMAL)
    _begin_s.set(time.monotonic())


def set_level(level: Level) -> None:
    """Set the verbosity."""
    _level.set(level)


def is_quiet() -> bool:
    """Whether only results and errors are printed."""
    return _level.get() == Level.QUIET


def is_verbose() -> bool:
    """Whether details are printed."""
    return _level.get() == Level.VERBOSE


def has_bars() -> bool:
    """Whether progress is shown as a bar: on a terminal, unless --verbose is given."""
    return sys.stderr.isatty() and _level.get() == Level.NORMAL


def note(line: str) -> None:
    """Print a note; with `--verbose` with the time since the command's start."""
    if is_quiet():
        return
    stamp = f"{time.monotonic() - _begin_s.get():8.3f} s  " if is_verbose() else ""
    typer.echo(_wrapped(f"{stamp}{line}"), err=True)


def detail(line: str) -> None:
    """Print a note only with `--verbose`."""
    if is_verbose():
        note(line)


def print_error(problem: str, remedy: str, link: str) -> None:
    """Print an error: problem, remedy and documentation page, one line each."""
    label = styled("error:", fg="red", bold=True)
    typer.echo(f"{label} {_one_line(problem)}", err=True)
    typer.echo(f"  try: {_one_line(remedy)}", err=True)
    typer.echo(styled(f"  see: {link}", dim=True), err=True)


def styled(text: str, **style: Any) -> str:
    """Text in colours, unless NO_COLOR is set (https://no-color.org)."""
    return text if os.environ.get("NO_COLOR") else typer.style(text, **style)


def console(stderr: bool = False, width: int | None = None) -> Console:
    """A rich console for tables and bars; it respects NO_COLOR itself."""
    from rich.console import Console

    return Console(highlight=False, stderr=stderr, width=width)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _wrapped(line: str) -> str:
    """Wrap a long line on a terminal; elsewhere it stays one line."""
    width = shutil.get_terminal_size().columns
    if len(line) <= width or not sys.stderr.isatty():
        return line
    return textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
