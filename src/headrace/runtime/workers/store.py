"""The shell of a graph store, which also sees to the graph's files on its machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from headrace.linux.network import unreachable, write_private
from headrace.runtime.workers.base import TaskActor
from headrace.runtime.workers.graph_cache import GraphCache
from headrace.runtime.workers.task_process import TaskProcess

_AGENT_S = 5.0


class StoreActor(TaskActor):
    """Runs a store; there is one on every machine.

    Args:
        task: Name of the task.
        machine: Name of the machine.
        cache: Folder for graphs that were shipped; none for the usual one.
    """

    def __init__(self, task: str, machine: str, cache: str | None = None) -> None:
        super().__init__(task, machine)
        self._files = GraphCache(cache)
        self._config: dict[str, Any] = {}
        self._num_starts = 0
        self._agent: TaskProcess | None = None

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
        self._config = {**config, "credentials": str(self._write_keys(credentials))}
        self._start()

    def restart(self) -> None:
        """Start the store again, on the ports that clients know."""
        ports = self._ports()
        if ports is not None:
            self._config["parts"] = ports
        if self._process is not None:
            self._process.end()
        self._start()

    def reach(self, places: dict[str, tuple[str, int]]) -> dict[str, str]:
        """Try to connect to places; why each of those that cannot be reached cannot.

        Args:
            places: Host and port by name.
        """
        return unreachable(places)

    def control_traffic(self, config: dict[str, Any]) -> None:
        """Start the agent that controls what leaves this machine.

        Args:
            config: An `AgentConfig`.
        """
        path = self.folder / "traffic.json"
        write_private(path, json.dumps(config).encode())
        command = [sys.executable, "-m", "headrace.runtime.traffic", str(path)]
        self._agent = TaskProcess(command, self.folder / "traffic.log")

    def close(self) -> None:
        """End whatever is left, and remove the folder."""
        if self._agent is not None:
            # It gives the card back first, and nobody else could.
            self._agent.end(_AGENT_S)
        super().close()

    def _start(self) -> None:
        self._num_starts += 1
        path = self.folder / "store.json"
        # Rows that were learnt are found again by a store that is started again.
        own = {"ready": str(self._ready), "embedding_folder": str(self.folder / "embeddings")}
        path.write_text(json.dumps({**self._config, **own}), encoding="utf-8")
        command = [sys.executable, "-m", "headrace.graph.store", "--config", str(path)]
        self._process = TaskProcess(command, self.log_path, lease=self._lease)

    @property
    def _ready(self) -> Path:
        # A file for each start: the one of a store that has ended says nothing of the next.
        return self.folder / f"ready-{self._num_starts}"

    def _more(self) -> dict[str, Any]:
        return {
            "ports": self._ports(),
            "nic": self.nic(),
            "starts": self._num_starts,
            "is_verified": self._ready.with_name(f"{self._ready.name}-verified").exists(),
        }

    def _ports(self) -> dict[str, int] | None:
        try:
            ready = json.loads(self._ready.read_text(encoding="ascii"))
        except OSError:
            return None
        ports: dict[str, int] = ready["ports"]
        return ports
