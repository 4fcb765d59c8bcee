"""Files that a script has left on its machine, brought into the folder of its run."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from headrace.core.errors import SpecError

# What the run itself keeps there; a script that calls a file like that must not replace it.
_OWN = re.compile(
    r"(plan|run|status|figures|clocks)\.json|(events|reports|log|trace-.*)\.jsonl|trace\.npz"
    r"|driver\.lock|logs|checkpoints|\..*|"
)


def bring(folder: Path, name: str, pieces: Iterable[bytes]) -> None:
    """Write a file, whole or not at all.

    Args:
        folder: Of the run.
        name: What the script calls it.
        pieces: What is in it.

    Raises:
        SpecError: The name is one of the run's own, or names another folder.
    """
    if _OWN.fullmatch(name) or Path(name).name != name:
        raise SpecError(f"a run keeps no file {name!r} of its script", "give it another name")
    partial = folder / f".{name}.partial"
    try:
        with partial.open("wb") as file:
            for piece in pieces:
                file.write(piece)
        partial.replace(folder / name)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
