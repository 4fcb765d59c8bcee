"""How far a verb is: a bar on a terminal, else one plain line per step; always on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from headrace.cli import console as voice

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

COMPILING = "compiling, once: up to 40 seconds; from now on this takes a second or two"
"""What is said while numba compiles what a command needs for the first time."""


@contextmanager
def steps(num_steps: int) -> Iterator[Callable[[str], None]]:
    """Show progress while a block runs.

    Args:
        num_steps: How many steps the block will take.

    Yields:
        What to call with a step's name before the step begins.
    """
    if not voice.has_bars():
        with _compiling_told(voice.note):
            yield _line_writer(num_steps)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    counted = (BarColumn(), MofNCompleteColumn()) if num_steps > 1 else ()
    console = voice.console(stderr=True)
    with (
        Progress(*columns, *counted, console=console, transient=True) as progress,
        _compiling_told(progress.console.print),
    ):
        bar = progress.add_task("", total=num_steps)
        num_begun = 0

        def begin(name: str) -> None:
            nonlocal num_begun
            progress.update(bar, description=name, completed=num_begun, refresh=True)
            num_begun += 1

        yield begin


@contextmanager
def _compiling_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Say once that code is being compiled, if numba has not kept it from an earlier command."""
    from numba.core.event import Event, Listener, install_listener

    class Teller(Listener):
        has_told = False

        def on_start(self, event: Event) -> None:
            if not self.has_told:
                self.has_told = True
                tell(COMPILING)

        def on_end(self, event: Event) -> None:
            pass

    with install_listener("numba:compile", Teller()):
        yield


def _line_writer(num_steps: int) -> Callable[[str], None]:
    num_begun = 0

    def begin(name: str) -> None:
        nonlocal num_begun
        num_begun += 1
        counter = f"[{num_begun}/{num_steps}] " if num_steps > 1 else ""
        voice.note(f"{counter}{name}")

    return begin


class Stages:
    """Tells people of the stages of long work: a bar for each on a terminal, else a line.

    Args:
        are_kept: Whether bars stay on the terminal, to say how long each stage took.
    """

    def __init__(self, are_kept: bool = True) -> None:
        self._are_kept = are_kept
        self._bars: Progress | None = None
        self._current: TaskID | None = None

    def __enter__(self) -> Self:
        if voice.has_bars():
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
                console=voice.console(stderr=True),
                transient=not self._are_kept,
            )
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end_stage()
        if self._bars is not None:
            self._bars.stop()

    def begin(self, stage: str, total: int | None = None) -> None:
        """A stage begins; the one before has ended."""
        self._end_stage()
        if self._bars is None:
            voice.note(stage)
        else:
            self._current = self._bars.add_task(stage, total=total)

    def advance(self, amount: int) -> None:
        """Some more of the stage is done."""
        if self._bars is not None and self._current is not None:
            self._bars.advance(self._current, amount)

    def _end_stage(self) -> None:
        if self._bars is not None and self._current is not None:
            self._bars.update(self._current, total=1, completed=1)
            self._bars.stop_task(self._current)
