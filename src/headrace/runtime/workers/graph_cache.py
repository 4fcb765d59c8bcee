"""Files of a partitioned graph on one machine: used in place, or copied once and cached."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import zlib
from pathlib import Path
from typing import Any

from headrace.core.units import format_bytes

MANIFEST = "manifest.json"
_READ_BYTES = 1 << 22


class GraphCache:
    """Finds a graph, or receives its missing files.

    A shipped graph is stored under the fingerprint of its manifest. A file gets its final name
    after its checksum is verified.
    """

    def __init__(self, cache: str | None = None) -> None:
        usual = Path.home() / ".cache" / "headrace" / "graphs"
        self._cache = Path(cache) if cache else usual
        self._folder = self._cache
        # Random, not the PID: machines may share the folder.
        self._partial = f".partial-{secrets.token_hex(8)}"

    def locate(self, given: str, fingerprint: str, files: dict[str, int]) -> dict[str, Any]:
        """Find the graph in `given` or in the cache; return its folder and its missing files."""
        for folder in (Path(given), self._cache / fingerprint):
            if fingerprint_of(folder) == fingerprint and not _missing(folder, files):
                return {"folder": str(folder), "missing": []}
        folder = self._cache / fingerprint
        return {"folder": str(folder), "missing": _missing(folder, files)}

    def find(self, given: str, fingerprint: str, files: dict[str, int]) -> dict[str, Any]:
        """Like `locate`, and prepare to receive the missing files."""
        found = self.locate(given, fingerprint, files)
        if not found["missing"]:
            return found
        self._folder = Path(found["folder"])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            free_bytes = shutil.disk_usage(self._folder).free
        except OSError as error:
            return {"error": f"cannot create {self._folder}: {error.strerror}"}
        needed_bytes = sum(files[name] for name in found["missing"])
        if needed_bytes > free_bytes:
            return {
                "error": f"{self._folder} needs {format_bytes(needed_bytes)}, "
                f"only {format_bytes(free_bytes)} are free"
            }
        return found

    def receive(self, name: str, offset: int, data: bytes) -> None:
        """Write a chunk of a file; chunks arrive in order."""
        path = self._hidden(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if offset == 0:
            path.unlink(missing_ok=True)
        with path.open("xb" if offset == 0 else "r+b") as file:
            file.seek(offset)
            file.write(data)

    def seal(self, checksums: dict[str, int]) -> dict[str, Any]:
        """Verify files and give them their final names, the manifest last."""
        for name in sorted(checksums, key=lambda name: name == MANIFEST):
            hidden = self._hidden(name)
            if not hidden.exists() or _crc32(hidden) != checksums[name]:
                hidden.unlink(missing_ok=True)
                return {"error": f"{name} is corrupt after the transfer"}
            hidden.replace(self._folder / name)
        return {"folder": str(self._folder)}

    def _hidden(self, name: str) -> Path:
        path = self._folder / name
        if not path.resolve().is_relative_to(self._folder.resolve()):
            raise ValueError(f"{name} is not a file of a graph")
        return path.with_name(path.name + self._partial)


def fingerprint_of(folder: Path) -> str | None:
    """Fingerprint of a folder's manifest; none if there is no manifest."""
    try:
        return hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()[:16]
    except OSError:
        return None


def _missing(folder: Path, files: dict[str, int]) -> list[str]:
    def is_there(name: str) -> bool:
        try:
            return (folder / name).stat().st_size == files[name]
        except OSError:
            return False

    return [name for name in files if not is_there(name)]


def _crc32(path: Path) -> int:
    crc = 0
    with path.open("rb", buffering=0) as file:
        while piece := file.read(_READ_BYTES):
            crc = zlib.crc32(piece, crc)
    return crc
