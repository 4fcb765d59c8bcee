"""Packs the user's code for the trainers."""

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
"""Size limit per file; larger files are treated as data and excluded."""

MAX_BYTES = 100 << 20
"""Size limit of all files together."""

EXCLUDES = (
    ".*", "__pycache__", "*.pyc", "node_modules", "venv", "*.egg-info", "*.ckpt", "*.npz",
)  # fmt: skip
"""Excluded names: hidden files, caches and environments."""


_SHOWN = 5


@dataclass(frozen=True)
class Script:
    """Command of the training script; without `code` (a zip archive) it runs in `folder`."""

    command: Sequence[str]
    code: bytes | None
    folder: Path | None = None


def pack(folder: Path, script: Path, log: Callable[[str], None]) -> bytes:
    """Pack a folder as a zip archive; `script` is always included, other large files are not.

    Raises:
        SpecError: The script is outside of the folder, or the folder is too large.
    """
    folder, script = folder.resolve(), script.resolve()
    if not script.is_relative_to(folder):
        raise SpecError(
            f"{script} is not in {folder}", "give --working-dir a folder that contains the script"
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
                    f"{folder} has more than {MAX_BYTES >> 20} MiB of code to send",
                    "move data elsewhere, or give --working-dir a folder with code only",
                )
            archive.write(path, path.relative_to(folder))
    if large:
        log(f"files over {MAX_FILE_BYTES >> 20} MiB are not sent to trainers: {_listed(large)}")
    return packed.getvalue()


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _files(folder: Path) -> Iterator[Path]:
    for above, folders, names in os.walk(folder):
        if "manifest.json" in names and "ids" in folders:
            # A partitioned graph is shipped separately.
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not _is_left_out(name))
        for name in sorted(names):
            path = Path(above) / name
            if not _is_left_out(name) and path.is_file():
                yield path


def _is_left_out(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in EXCLUDES)
