"""`headrace logs`: print the logs of a run's tasks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import console
from headrace.cli.options import Runs, WantedRun

if TYPE_CHECKING:
    from headrace.api.run_status import RunDirectory

EXAMPLE = "Example: headrace logs --task sampler1.0 --follow"
_PERIOD_S = 0.2


def logs(
    run: WantedRun = None,
    task: Annotated[
        list[str] | None,
        typer.Option(help="Only this task, e.g. sampler1.0; may be repeated.", metavar="TASK"),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the run ends.")
    ] = False,
    errors: Annotated[bool, typer.Option("--errors", help="Only errors and tracebacks.")] = False,
    lines: Annotated[
        int | None, typer.Option(help="Only the last N lines of each task.", metavar="N", min=0)
    ] = None,
    runs: Runs = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """Print the logs of a run's tasks, each line with the name of its task."""
    from headrace.api.run_status import find_run, runs_folder

    folder = find_run(runs_folder(runs), run)
    wanted = set(task or ())
    _check(folder, wanted)
    readers: dict[str, _Reader] = {}
    is_last = not follow
    try:
        while True:
            # Checked before the last read, so that no line is missed.
            is_last = is_last or _is_over(folder)
            for name in _names(folder, wanted):
                is_new = name not in readers
                reader = readers.setdefault(name, _Reader(folder.log(name), errors))
                found = list(reader.read(is_last))
                if is_new and lines is not None:
                    found = found[len(found) - min(lines, len(found)) :]
                _print(name, found, as_json, is_prefixed=len(wanted) != 1)
            if is_last:
                return
            time.sleep(_PERIOD_S)
    except KeyboardInterrupt:
        return


def _print(name: str, found: Iterable[str], as_json: bool, is_prefixed: bool) -> None:
    for line in found:
        if as_json:
            typer.echo(json.dumps({"task": name, "line": line}))
        elif is_prefixed:
            typer.echo(f"{console.styled(f'{name:<12}', dim=True)}{line}")
        else:
            typer.echo(line)


class _Reader:
    """Reads a growing file, complete lines only."""

    def __init__(self, path: Path, errors: bool) -> None:
        from headrace.observability.levels import Levels

        self._path = path
        self._begin = 0
        self._rest = b""
        self._errors = errors
        self._levels = Levels()

    def read(self, is_last: bool) -> Iterator[str]:
        """New lines; at the end also an incomplete one."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._begin)
                data = file.read()
        except FileNotFoundError:
            return
        self._begin += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if is_last and self._rest:
            whole.append(self._rest)
        for each in whole:
            line = each.decode("utf-8", errors="replace").rstrip("\r")
            if not self._errors or self._levels.of(line) == "error":
                yield line


def _names(folder: RunDirectory, wanted: set[str]) -> list[str]:
    there = sorted(path.stem for path in folder.logs.glob("*.log"))
    return [name for name in there if not wanted or name in wanted]


def _check(folder: RunDirectory, wanted: set[str]) -> None:
    """Raise `SpecError` for an unknown task name."""
    from headrace.core.errors import SpecError

    if not wanted:
        return
    known = {task.name for task in folder.read_status().tasks} | set(_names(folder, set()))
    unknown = sorted(wanted - known)
    if unknown:
        there = ", ".join(sorted(known)) or "none yet"
        raise SpecError(
            f"run {folder.run_id} has no task {unknown[0]!r}", f"choose one of its tasks: {there}"
        )


def _is_over(folder: RunDirectory) -> bool:
    from headrace.api.run_status import view_run

    return view_run(folder, time.time(), {}).is_over
