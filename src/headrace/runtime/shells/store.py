"""The shell of a graph store, which also sees to the graph's files on its machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from headrace.runtime.shells.child import Child
from headrace.runtime.shells.graph_files import GraphFiles
from headrace.runtime.shells.shell import Shell


class StoreShell(Shell):
    """Runs a store; there is one on every machine.

    Args:
        task: Name of the task.
        machine: Name of the machine.
        cache: Folder for graphs that were shipped; none for the usual one.
    """

    def __init__(self, task: str, machine: str, cache: str | None = None) -> None:
        super().__init__(task, machine)
        self._ready = self.folder / "ready"
        self._files = GraphFiles(cache)

    def find_graph(self, given: str, fingerprint: str, files: dict[str, int]) -> dict[str, Any]:
        """Where the graph is on this machine, and which files of it are not."""
        return self._files.find(given, fingerprint, files)

    def take(self, name: str, offset: int, data: bytes) -> None:
        """Take a piece of a file that is being shipped."""
        self._files.take(name, offset, data)

    def seal(self, checksums: dict[str, int]) -> dict[str, Any]:
        """Check what was shipped and put it in its place."""
        return self._files.seal(checksums)

    def start(self, config: dict[str, Any], credentials: bytes) -> None:
        """Start the store.

        Args:
            config: A `StoreConfig` without what only this machine knows.
            credentials: What `Credentials.save` would write.
        """
        own = {"credentials": str(self._write_keys(credentials)), "ready": str(self._ready)}
        path = self.folder / "store.json"
        path.write_text(json.dumps({**config, **own}), encoding="utf-8")
        command = [sys.executable, "-m", "headrace.graph.service", "--config", str(path)]
        self._child = Child(command, self.log_path)

    def _more(self) -> dict[str, Any]:
        return {"port": _port(self._ready), "nic": self.nic()}


def _port(ready: Path) -> int | None:
    try:
        port: int = json.loads(ready.read_text(encoding="ascii"))["port"]
    except OSError:
        return None
    return port
