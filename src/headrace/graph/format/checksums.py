"""Compare the files of a graph with their checksums, while others read them already.

A file that was found intact is remembered by its inode, size and times, so that only the first
process after a change reads it. What is used without a look at each value, such as the offsets of
edges, is compared before its first use.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.core.errors import DamagedGraphError
from headrace.graph.format.array_files import damage_of
from headrace.graph.format.manifest import REMEDY, FileInfo, Manifest

_IDLE = 19
_MOST_REMEMBERED = 20_000


class VerifiedFiles:
    """Remembers which files were intact, for all processes of a machine.

    Args:
        folder: Where to keep that; none for the user's cache.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or Path.home() / ".cache" / "headrace" / "verified"

    def has(self, path: Path, info: FileInfo) -> bool:
        """Whether a file was intact and is the same since."""
        with suppress(OSError):
            return (self._folder / _name(path, info)).exists()
        return False

    def add(self, path: Path, info: FileInfo) -> None:
        """Remember a file; without a folder that can be written, nothing is."""
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
    """Compare one file, unless it is known.

    Raises:
        DamagedGraphError: It has not the bytes that it should have.
    """
    known, path = known or VerifiedFiles(), folder / name
    if known.has(path, info):
        return
    if problem := damage_of(path, name, info):
        raise DamagedGraphError(f"{folder} is damaged: {problem}", REMEDY)
    known.add(path, info)


def files_of(manifest: Manifest, parts: Iterable[int]) -> dict[str, FileInfo]:
    """Files of some parts, and those that all parts have in common."""
    own = tuple(f"part-{part}/" for part in parts)
    return {
        name: info
        for name, info in manifest.files.items()
        if not name.startswith("part-") or name.startswith(own)
    }


class Verification:
    """Compares files in a thread that others do not wait for.

    Args:
        folder: Of the graph.
        files: What to compare, by name.
        on_end: Called once, with what is wrong or nothing.
        known: What need not be read again.

    Attributes:
        problem: What is wrong with the first damaged file; empty if none is so far.
        is_complete: Whether all files were compared, and are intact.
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
        """Begin to compare."""
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end; whether it was reached."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop comparing after the file that is being read."""
        self._stop.set()

    def check(self) -> None:
        """See whether something is wrong by now.

        Raises:
            DamagedGraphError: Something is.
        """
        if self.problem:
            raise DamagedGraphError(self.problem, REMEDY)

    def _run(self) -> None:
        # Of this thread alone, on Linux: nothing else waits for it.
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
