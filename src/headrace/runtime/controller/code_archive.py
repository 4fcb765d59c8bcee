"""The user's folder, packed for the machines whose trainers run it."""

from __future__ import annotations

import fnmatch
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import SpecError
from headrace.core.units import format_bytes

MAX_FILE_BYTES = 10 << 20
"""Code is small; a larger file is data, which is left out."""

MAX_BYTES = 100 << 20
"""Of all files together."""

EXCLUDES = (
    ".*", "__pycache__", "*.pyc", "node_modules", "venv", "*.egg-info", "*.ckpt", "*.npz",
)  # fmt: skip
"""Names that are left out: hidden ones, caches and environments."""


_SHOWN = 5


@dataclass(frozen=True)
class Script:
    """What trainers run.

    Attributes:
        command: The script as its path in the code, and its arguments.
        code: The user's folder, packed; none if it is where shells run.
    """

    command: Sequence[str]
    code: bytes | None


def pack(folder: Path, script: Path, say: Callable[[str], None]) -> bytes:
    """A zip file of a folder.

    Args:
        folder: What to pack.
        script: A file in it, which is packed whatever it is called.
        say: Told which files are too large to be packed.

    Raises:
        SpecError: The script is elsewhere, or there is too much.
    """
    folder, script = folder.resolve(), script.resolve()
    if not script.is_relative_to(folder):
        raise SpecError(
            f"{script} is not in {folder}", "give --working-dir a folder that has the script"
        )
    packed = io.BytesIO()
    total_bytes, large = 0, []
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for path in dict.fromkeys([script, *_files(folder)]):
            size = path.stat().st_size
            if size > MAX_FILE_BYTES and path != script:
                large.append(f"{path.relative_to(folder)} ({format_bytes(size)})")
                continue
            total_bytes += size
            if total_bytes > MAX_BYTES:
                raise SpecError(
                    f"{folder} has more than {MAX_BYTES >> 20} MiB for the machines",
                    "move data elsewhere, or give --working-dir a folder with code alone",
                )
            archive.write(path, path.relative_to(folder))
    if large:
        say(f"trainers do not get files of more than {MAX_FILE_BYTES >> 20} MiB: {_listed(large)}")
    return packed.getvalue()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _files(folder: Path) -> Iterator[Path]:
    for above, folders, names in os.walk(folder):
        if "manifest.json" in names and "ids" in folders:
            # A partitioned graph has its own way to the machines.
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not _is_left_out(name))
        for name in sorted(names):
            path = Path(above) / name
            if not _is_left_out(name) and path.is_file():
                yield path


def _is_left_out(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in EXCLUDES)
