"""Progress on standard error: a bar on a terminal, else one line per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Self

from headrace.cli import console as terminal
from headrace.cli.kernels import first_use

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

COMPILING = "compiling kernels, only the first time: 5 to 40 seconds"
"""Printed while numba compiles kernels for the first time."""


@contextmanager
def steps(num_steps: int, *, interpret: bool = True) -> Iterator[Callable[[str], None]]:
    """Show progress while a block runs; yields a function to call with each step's name.

    With `interpret`, kernels that are not compiled yet may be interpreted (`first_use`).
    """
    if not terminal.has_bars():
        with _first_use(interpret, terminal.note), _reporting_compilation(terminal.note):
            yield _line_writer(num_steps)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    counted = (BarColumn(), MofNCompleteColumn()) if num_steps > 1 else ()
    console = terminal.console(stderr=True)
    with (
        Progress(*columns, *counted, console=console, transient=True) as progress,
        _first_use(interpret, progress.console.print),
        _reporting_compilation(progress.console.print),
    ):
        bar = progress.add_task("", total=num_steps)
        num_begun = 0

        def begin(name: str) -> None:
            nonlocal num_begun
            total = max(num_begun + 1, num_steps)
            progress.update(bar, description=name, completed=num_begun, total=total, refresh=True)
            num_begun += 1

        yield begin


def _first_use(interpret: bool, report: Callable[[str], None]) -> AbstractContextManager[None]:
    return first_use(report) if interpret else nullcontext()


@contextmanager
def _reporting_compilation(report: Callable[[str], None]) -> Iterator[None]:
    """Report once that numba compiles code, if its cache has none."""
    from numba.core.event import Event, Listener, install_listener

    class CompileListener(Listener):
        is_reported = False

        def on_start(self, event: Event) -> None:
            if not self.is_reported:
                self.is_reported = True
                report(COMPILING)

        def on_end(self, event: Event) -> None:
            pass

    with install_listener("numba:compile", CompileListener()):
        yield


def _line_writer(num_steps: int) -> Callable[[str], None]:
    num_begun = 0

    def begin(name: str) -> None:
        nonlocal num_begun
        num_begun += 1
        # Some work adds steps: a plan with a cache is made twice.
        counter = f"[{num_begun}/{max(num_begun, num_steps)}] " if num_steps > 1 else ""
        terminal.note(f"{counter}{name}")

    return begin


class Stages:
    """Shows the stages of long work: a bar for each on a terminal, else a line."""

    def __init__(self, are_kept: bool = True) -> None:
        self._are_kept = are_kept
        self._bars: Progress | None = None
        self._current: TaskID | None = None

    def __enter__(self) -> Self:
        if terminal.has_bars():
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                console=terminal.console(stderr=True),
                transient=not self._are_kept,
            )
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end_stage()
        if self._bars is not None:
            self._bars.stop()

    def begin(self, stage: str, total: int | None = None) -> None:
        """Begin a stage and end the previous one."""
        self._end_stage()
        if self._bars is None:
            terminal.note(stage)
        else:
            self._current = self._bars.add_task(stage, total=total)

    def advance(self, amount: int) -> None:
        """Advance the current stage."""
        if self._bars is not None and self._current is not None:
            self._bars.advance(self._current, amount)

    def _end_stage(self) -> None:
        if self._bars is not None and self._current is not None:
            self._bars.update(self._current, total=1, completed=1)
            self._bars.stop_task(self._current)
