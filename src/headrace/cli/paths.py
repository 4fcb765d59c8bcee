"""Check files named on the command line before long work starts."""

from __future__ import annotations

import difflib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.cli import console

if TYPE_CHECKING:
    from headrace.core.profile import Profile


def find_full_graph_profile(path: Path | None) -> Profile | None:
    """Read a profile of a full-graph job; without one print a note."""
    from headrace.api.documents.load import load_profile

    if path is None:
        console.note(
            "note: no --profile; the prediction has the time of the network only, and computing "
            "takes none"
        )
    return None if path is None else load_profile(path)


def find_profile(path: Path | None, *, has_graph: bool = False) -> Profile:
    """Read a profile; without one use the synthetic default, and print a note.

    With a graph, volumes are sampled from it.
    """
    from headrace.api.documents.load import load_profile
    from headrace.profiling.default_profile import default_profile

    if path is not None:
        return load_profile(path)
    profile = default_profile()
    what, _, figures = profile.note.partition(", ")
    figure = "times" if has_graph else "times and volumes"
    console.note(f"note: no --profile; all {figure} are synthetic: {what}")
    console.detail(f"synthetic values: {figures}")
    return profile


def check_can_write(path: Path | None) -> None:
    """Check that a file can be written."""
    from headrace.core.errors import SpecError

    if path is not None and path.is_dir():
        raise SpecError(f"{path} is a directory", "give the file to write")
    if path is not None and not path.parent.is_dir():
        raise SpecError(
            f"{path.parent} is not a directory, so {path} cannot be written",
            f"create it with `mkdir -p {path.parent}`, or write elsewhere",
        )


def check_script(path: Path) -> None:
    """Check a script before every task of a run starts it."""
    from headrace.core.errors import SpecError

    if path.is_dir():
        raise SpecError(f"{path} is a directory, not a script", "give a Python file in it")
    if not path.is_file():
        siblings = [each.name for each in path.parent.glob("*.py")]
        likely = difflib.get_close_matches(path.name, siblings, n=1)
        remedy = f"did you mean {path.with_name(likely[0])}?" if likely else "give a Python file"
        raise SpecError(f"there is no script {path}", remedy)
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise SpecError(
            f"{path}, line {error.lineno or 1}: this is not Python ({error.msg})",
            f"fix the script; `python {path}` shows the location",
        ) from None
    except ValueError:
        raise SpecError(f"{path} is not a text file", "give a Python file") from None
