"""Checksum verification of graph files, concurrent with their use.

An intact file is recorded by inode, size and times, so that only the first process after a change
reads it. Arrays that kernels use without bounds checks, such as `indptr`, are verified before
their first use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.core.errors import DamagedGraphError
from headrace.graph.format.array_files import damage_of
from headrace.graph.format.manifest import FileInfo, Manifest

_IDLE = 19
_MOST_REMEMBERED = 20_000


class VerifiedFiles:
    """Records intact files for all processes of a machine, by default in the user's cache."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path.home() / ".cache" / "headrace" / "verified"

    def has(self, path: Path, info: FileInfo) -> bool:
        """Whether a file was intact and is unchanged since."""
        with suppress(OSError):
            return (self._folder / _name(path, info)).exists()
        return False

    def add(self, path: Path, info: FileInfo) -> None:
        """Record a file; does nothing if the directory is not writable."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._trim()
            (self._folder / _name(path, info)).touch()

    def _trim(self) -> None:
        if len(names := os.listdir(self._folder)) >= _MOST_REMEMBERED:
            for name in names:
                (self._folder / name).unlink(missing_ok=True)


def _name(path: Path, info: FileInfo) -> str:
    stat = path.stat()
    times = f"{stat.st_mtime_ns:x}-{stat.st_ctime_ns:x}"
    return f"{stat.st_dev:x}-{stat.st_ino:x}-{stat.st_size:x}-{times}-{info.crc32:08x}"


def check_file(folder: Path, name: str, info: FileInfo, known: VerifiedFiles | None = None) -> None:
    """Verify one file unless it is recorded as intact.

    Raises:
        DamagedGraphError: The contents do not match the manifest.
    """
    known, path = known or VerifiedFiles(), folder / name
    if known.has(path, info):
        return
    if problem := damage_of(path, name, info):
        raise DamagedGraphError(f"{folder} is damaged: {problem}")
    known.add(path, info)


def files_of(manifest: Manifest, parts: Iterable[int]) -> dict[str, FileInfo]:
    """Files of the given partitions and files common to all partitions."""
    own = tuple(f"part-{part}/" for part in parts)
    return {
        name: info
        for name, info in manifest.files.items()
        if not name.startswith("part-") or name.startswith(own)
    }


class Verification:
    """Verifies files in a background thread.

    Args:
        folder: Directory of the graph.
        files: Files to verify, by name.
        on_end: Called once, with the problem or an empty string.
        known: Files that need not be read again.

    Attributes:
        problem: Damage of the first damaged file; empty if none was found so far.
        is_complete: Whether all files were verified and are intact.
    """

    def __init__(
        self,
        folder: Path,
        files: Mapping[str, FileInfo],
        on_end: Callable[[str], None] = lambda problem: None,
        known: VerifiedFiles | None = None,
    ) -> None:
        self.problem, self.is_complete = "", False
        self._folder, self._files, self._on_end = folder, files, on_end
        self._known = known or VerifiedFiles()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="verification", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the thread; returns whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop after the current file."""
        self._stop.set()

    def check(self) -> None:
        """Raise DamagedGraphError if damage was found so far."""
        if self.problem:
            raise DamagedGraphError(self.problem)

    def _run(self) -> None:
        # On Linux this lowers the priority of this thread only.
        with suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _IDLE)
        try:
            for name, info in self._files.items():
                if self._stop.is_set():
                    return
                check_file(self._folder, name, info, self._known)
            self.is_complete = True
        except DamagedGraphError as error:
            self.problem = error.problem
        self._on_end(self.problem)
